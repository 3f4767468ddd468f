"""One module for each format of corpus files."""
