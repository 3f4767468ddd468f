"""What `tokenizer_config.json` says to `transformers`, fitted to the model beside it."""

from __future__ import annotations

import json
from pathlib import Path

from unmask.io.writing import write_json
from unmask.tokenization.directory import INPUT_NAMES, SEGMENTS


def fit_to_model(directory: Path, max_length: int, has_segments: bool) -> None:
    """Corrects `tokenizer_config.json` in a model's directory; does nothing where there is none (ELMo's words).

    Args:
        max_length: most tokens that the model takes: `transformers` cuts there.
        has_segments: whether the model has embeddings for `token_type_ids`, which `transformers` then gives it.
    """
    path = directory / "tokenizer_config.json"
    if not path.is_file():
        return
    config = json.loads(path.read_bytes())
    for key in ("truncation_side", "padding_side"):
        config.pop(key, None)  # texts are cut at their ends here, and begin at the first position
    names = config.get(INPUT_NAMES)
    names = [name for name in names if name != SEGMENTS] if isinstance(names, list) else ["input_ids", "attention_mask"]
    if has_segments:
        names.insert(1, SEGMENTS)
    write_json(path, config | {"model_max_length": max_length, INPUT_NAMES: names})
