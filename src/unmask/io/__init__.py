"""Files, progress and signals: what every program does the same way."""
