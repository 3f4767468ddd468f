"""The sample encoders: `transformers` opens them as they are and fills a gap as `unmask` does; they stay small."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

from unmask.inference.mask_filling import fill_mask

GAPS = [
    ("en", "She opened the [MASK] and went into the house.", "door"),
    ("ko", "그는 대학교를 [MASK] 후 회사에 들어갔다.", "졸업한"),
]


@torch.no_grad()
@pytest.mark.parametrize(("name", "text", "word"), GAPS)
def test_transformers_opens_a_sample_encoder(name: str, text: str, word: str, samples_dir: Path) -> None:
    directory = samples_dir / "models" / name
    model, report = AutoModelForMaskedLM.from_pretrained(directory, output_loading_info=True, dtype=torch.float32)
    assert not any(report.values()), report
    tokenizer = AutoTokenizer.from_pretrained(directory)
    inputs = tokenizer(text, return_tensors="pt")
    (gap,) = (inputs["input_ids"][0] == tokenizer.mask_token_id).nonzero().flatten().tolist()
    probabilities = model.eval()(**inputs).logits[0, gap].softmax(-1)
    likeliest = probabilities.index_fill(0, torch.tensor(tokenizer.all_special_ids), 0).topk(5)
    ours = fill_mask(directory, text, top_k=5)
    assert ours[0]["token_str"] == word
    assert [each["token"] for each in ours] == likeliest.indices.tolist()
    assert [each["score"] for each in ours] == pytest.approx(likeliest.values.tolist(), rel=1e-4)


def test_a_particle_behind_a_blank_belongs_to_its_word(samples_dir: Path) -> None:
    first, second = fill_mask(samples_dir / "models" / "ko", "그는 [MASK]를 졸업하였다.", top_k=2)
    assert first["sequence"] == "그는 고등학교를 졸업하였다."
    assert second["sequence"] == "그는 대학교를 졸업하였다."


@pytest.mark.parametrize("name", ["en", "ko"])
def test_a_sample_encoder_has_at_most_25_megabytes(name: str, samples_dir: Path) -> None:
    assert sum(path.stat().st_size for path in (samples_dir / "models" / name).iterdir()) <= 25e6
