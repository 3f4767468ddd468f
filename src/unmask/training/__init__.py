"""The training loop, which is independent of objectives and tasks."""
