"""Checks of a token store."""
