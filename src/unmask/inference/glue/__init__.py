"""GLUE's submission file and its average."""
