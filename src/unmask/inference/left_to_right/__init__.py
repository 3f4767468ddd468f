"""Left-to-right language models: generating, scoring, answering without fine-tuning."""
