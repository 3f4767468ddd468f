"""What is put on top of an encoder."""
