"""Documents to sentences."""
