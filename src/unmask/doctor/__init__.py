"""`unmask doctor`: what a store, a recipe or a run holds, what is wrong with it, and what to do about it."""
