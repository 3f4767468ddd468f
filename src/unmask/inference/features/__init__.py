"""Vectors of texts from a frozen encoder."""
