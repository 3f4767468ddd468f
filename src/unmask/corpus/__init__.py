"""Files to documents: reading, cleaning, sentences, mixtures, and what was lost on the way."""
