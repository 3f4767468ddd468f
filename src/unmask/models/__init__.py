"""Encoders and heads on packed batches, and their directories in the Hugging Face layout (Devlin et al. 2019).

Models see token ids, never text.
"""
