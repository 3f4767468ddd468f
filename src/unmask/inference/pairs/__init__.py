"""Minimal pairs: how often a model finds the grammatical sentence likelier."""
