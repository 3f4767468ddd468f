"""Checks of a run or search."""
