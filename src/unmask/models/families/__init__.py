"""The architectures: one file with a `Family` each, and their table."""
