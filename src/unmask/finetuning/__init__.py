"""The program `unmask finetune`."""
