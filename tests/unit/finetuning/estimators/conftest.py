"""The interface to scikit-learn needs the extra `sklearn`."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("sklearn") else ["test_*.py"]
