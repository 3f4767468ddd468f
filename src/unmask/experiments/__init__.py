"""Programs about many runs: what one will cost."""
