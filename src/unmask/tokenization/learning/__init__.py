"""Learning a vocabulary from text, and adding to one."""
