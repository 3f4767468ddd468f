"""What is learned in pre-training: masks, labels and losses."""
