"""Encoders and heads, on packed batches. No module here sees text."""
