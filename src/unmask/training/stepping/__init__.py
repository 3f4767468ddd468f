"""What takes an optimizer step of a run: the protocol, the plain way, and which is chosen."""
