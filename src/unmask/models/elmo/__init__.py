"""ELMo: character convolutions under two stacks of LSTMs (Peters et al. 2018)."""
