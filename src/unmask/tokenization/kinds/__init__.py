"""One module for each kind of tokenizer."""
