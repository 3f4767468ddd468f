"""How well a model tells grammatical sentences from others."""
