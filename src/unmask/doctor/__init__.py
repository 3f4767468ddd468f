"""The program `unmask doctor`: what is wrong with a store, a recipe or a run."""
