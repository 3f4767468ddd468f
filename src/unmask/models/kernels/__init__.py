"""How a model is computed fast, apart from what it computes."""
