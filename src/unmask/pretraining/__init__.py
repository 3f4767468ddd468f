"""The program `unmask pretrain`."""
