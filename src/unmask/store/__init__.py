"""Documents to the token store, which is written once per tokenizer and read by every objective."""
