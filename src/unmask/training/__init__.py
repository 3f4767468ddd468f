"""The training loop, which knows nothing of objectives and tasks."""
