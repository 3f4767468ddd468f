"""How likely a left-to-right language model finds each text of a file: no task, no labels, no threshold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from unmask.errors import ModelError, SettingsError
from unmask.inference.answer_lines import beside_input
from unmask.inference.coverage import Coverage
from unmask.inference.example_sets import in_sets
from unmask.inference.inputs import read_inputs, refusing_header
from unmask.inference.left_to_right.language_model import LanguageModel, load_language_model
from unmask.inference.task_options import Columns, as_columns
from unmask.io.input_files import DataPath, as_files
from unmask.models.hub.uses import NOT_FINITE
from unmask.tasks.base import ExampleCounts
from unmask.tasks.rows import checked_text, choose_layout, naming

_MOST_TEXTS = 256
"""How many texts are read and scored at once."""


def score_texts(
    model: str | Path | LanguageModel, data: str | DataPath, *, columns: Columns, device: str, precision: str
) -> Iterator[dict[str, Any]]:
    """The log-probability of each text of a file, in their order; a text that is too long loses its beginning.

    Args:
        model: a model's directory, that of the run that made it, or a loaded `LanguageModel`.
        data: one text a line, or a table or JSON lines with a column `text`; see `unmask.inference.inputs.read_inputs`.
        columns: the name of that column and of the one of ids, such as `{"text": "sentence"}`.
        device, precision: see `load_language_model`.

    Yields:
        `{"input", "log_probability", "num_tokens"}`, with the `id` of a row that has one: the sum of the natural
        logarithms of its tokens' probabilities, each given those before it, and how many these are. A model that reads
        bare text, as GPT-1, gives none for the first token.

    Raises:
        SettingsError: another column is named.
        InputError: the file cannot be read, or a row has no text.
        ModelError: what the model computes is not finite; or see `load_language_model`.
    """
    named = as_columns(columns)
    if others := named.model_fields_set - {"text", "id"}:
        name = min(others)
        raise SettingsError(
            f"--column {name} (from Python columns={{'{name}': ...}}) has no effect where texts are scored: only "
            "text and id are read; leave it out"
        )
    column = named.text or "text"
    loaded = load_language_model(model, device=device, precision=precision)
    counts = ExampleCounts()
    coverage = Coverage(loaded.tokenizer, str(data), counts)
    for rows in in_sets(refusing_header(read_inputs(as_files(data)), {column}), _MOST_TEXTS):
        for row in rows:
            choose_layout([column], row, lambda name: (name,), naming("text"))
        texts = [checked_text(row[column], column, row.source) for row in rows]
        encoded = loaded.tokenizer.encode_batch(texts)
        coverage.add_texts(encoded, texts)
        sequences = [[*loaded.prefix, *ids] or [0] for ids in encoded]
        counts.examples += len(rows)
        counts.empty += sum(not ids for ids in encoded)
        num_long = sum(len(ids) > loaded.window for ids in sequences)
        counts.note(f"longer than the model's {loaded.window} tokens, read without their beginning", num_long)
        scored = loaded.log_probabilities([ids[-loaded.window :] for ids in sequences])
        for row, values in zip(rows, scored, strict=True):
            if not values.isfinite().all():
                raise ModelError(NOT_FINITE)
            answer = {"log_probability": float(values.double().sum()), "num_tokens": len(values)}
            yield beside_input(row.fields, named.id or "id", answer)
    coverage.log()
