"""Pages that show runs and tokenizers."""
