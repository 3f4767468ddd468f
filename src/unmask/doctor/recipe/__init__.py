"""Checks of a recipe before it runs."""
