"""The run directory: checkpoints, metrics, log."""
