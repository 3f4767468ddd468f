"""Answers as spans of a passage."""
