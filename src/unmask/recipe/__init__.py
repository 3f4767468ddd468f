"""The recipe: the tree of all settings, where recipes are found, which settings may be combined."""
