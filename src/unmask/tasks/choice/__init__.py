"""The right one of several choices."""
