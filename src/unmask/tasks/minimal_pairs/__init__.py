"""Minimal pairs of sentences, of which one is grammatical."""
