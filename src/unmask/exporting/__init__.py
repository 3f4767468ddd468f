"""Models for other programs: ONNX graphs with a certificate of what they answer."""
