"""Fast encoding of plain text."""
