"""Many runs from one recipe, and their results."""
