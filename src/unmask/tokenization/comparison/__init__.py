"""Tokenizers compared on the same text."""
