"""The process that computes: models, what they can be asked, and the queue before them."""
