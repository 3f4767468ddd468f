"""Models behind HTTP: `unmask serve`."""
