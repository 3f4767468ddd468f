"""What is fixed in documents, and which are dropped."""
