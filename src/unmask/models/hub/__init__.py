"""Model directories in the layout of Hugging Face, read and written."""
