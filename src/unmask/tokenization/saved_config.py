"""What `tokenizer_config.json` says to `transformers`, fitted to the model beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from unmask.io.writing import write_json


def fit_to_model(directory: Path, max_length: int, has_segments: bool) -> None:
    """Corrects `tokenizer_config.json` in a model's directory; does nothing where there is none (ELMo's words).

    Args:
        max_length: most tokens that the model takes: `transformers` cuts there.
        has_segments: False stops `transformers` from giving the model `token_type_ids`, for which it has no embeddings.
    """
    path = directory / "tokenizer_config.json"
    if not path.is_file():
        return
    config = json.loads(path.read_bytes())
    changes: dict[str, Any] = {"model_max_length": max_length}
    names = config.get("model_input_names")
    if names is None and str(config.get("tokenizer_class")).startswith("Bert"):
        names = ["input_ids", "token_type_ids", "attention_mask"]
    if not has_segments and isinstance(names, list) and "token_type_ids" in names:
        changes["model_input_names"] = [name for name in names if name != "token_type_ids"]
    write_json(path, config | changes)
