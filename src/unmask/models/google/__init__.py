"""Google's TensorFlow checkpoints, read without TensorFlow."""
