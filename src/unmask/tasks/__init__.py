"""Kinds of fine-tuning task: rows of a file to examples, a head, a decoder and scores."""
