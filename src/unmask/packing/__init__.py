"""Stored tokens to packed batches: plans, formats, phases, streams."""
