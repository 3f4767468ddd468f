"""Which tokens are targets, and what is shown in their place."""
