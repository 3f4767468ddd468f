"""Text to token ids. No module here imports torch."""
