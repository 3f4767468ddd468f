"""scikit-learn's interface."""

try:
    import sklearn as sklearn
except ImportError:
    message = "TextClassifier, TextRegressor and TextEncoder need scikit-learn: pip install 'unmask[sklearn]'"
    raise ImportError(message) from None
