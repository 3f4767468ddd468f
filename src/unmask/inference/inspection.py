"""Looking inside a model: attention, what each layer would answer, and which words an answer rests on.

Everything is of one text at a time, for a person to look at; nothing of it is used to answer.

- The answer of a layer is what the masked-LM head makes of its output, as if it were the last ("logit lens").
- Erasure: how much less probable an answer becomes when a token is hidden behind `[MASK]` (Li et al. 2016, section 5).
- Integrated gradients (Sundararajan et al. 2017): the gradient of an answer's logit by the word embeddings, integrated
  from a text all of whose tokens are masked to the text as it is. The sum over tokens is what the two differ by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from unmask.batch import pack
from unmask.errors import InputError
from unmask.inference.mask_filling import likeliest
from unmask.inference.predictor import Predictor
from unmask.io.rows import Row
from unmask.models.encoder import TokenEncoder
from unmask.models.heads.heads import MaskedLMHead
from unmask.tasks.base import ExampleCounts
from unmask.tasks.encoded import EncodedExamples
from unmask.tokenization.tokenizer import TextTokenizer

NUM_STEPS = 32
"""Points between the masked text and the text at which gradients are taken."""


@torch.no_grad()
def attention_weights(encoder: TokenEncoder, ids: Sequence[int]) -> Tensor:
    """(layers, heads, tokens, tokens) float32: how much each token attends to each, 1 in sum over the last axis."""
    layers: list[Tensor] = []

    def keep(attention: Any, inputs: tuple[Any, ...], _: Tensor) -> None:
        hidden, layout = inputs[:2]
        query, key, _ = layout.leave(attention.parts(hidden, layout)).float().unbind(1)  # (tokens, heads, head_size)
        scores = torch.einsum("qhd,khd->hqk", query, key) * query.shape[-1] ** -0.5
        places = torch.arange(len(ids), device=scores.device)
        ahead = places[None, :] - places[:, None]  # (tokens, tokens): how far the attended token is to the right
        unseen = ahead > 0 if attention.causal else torch.zeros_like(ahead, dtype=torch.bool)
        if attention.window is not None:
            unseen = unseen | (ahead.abs() > attention.window)
        layers.append(scores.masked_fill(unseen, float("-inf")).softmax(-1).cpu())

    blocks: Any = encoder.blocks
    handles = [block.attention.register_forward_hook(keep) for block in blocks]
    try:
        encoder(pack([list(ids)]).to(encoder.word_embeddings.device))
    finally:
        for handle in handles:
            handle.remove()
    return torch.stack(layers)


@dataclass(frozen=True)
class LayerAnswer:
    """What a layer would answer: 0 is the embeddings' output; the likeliest tokens with their probabilities."""

    layer: int
    tokens: list[str]
    scores: list[float]


@torch.no_grad()
def answers_of_layers(
    encoder: TokenEncoder, head: MaskedLMHead, tokenizer: TextTokenizer, ids: Sequence[int], place: int, top_k: int
) -> list[LayerAnswer]:
    """What each layer would put at a place, from the embeddings' output to the last layer, which is the model's answer.

    A ModernBERT's norm behind its last layer is applied to every layer's output, as the head expects it.
    """
    *lower, last = encoder.hidden_states(pack([list(ids)]).to(encoder.word_embeddings.device))
    norm = getattr(encoder, "final_norm", nn.Identity())
    found = []
    for layer, state in enumerate([*map(norm, lower), last]):
        logits = head(state[place : place + 1].to(encoder.word_embeddings.dtype), encoder.word_embeddings)
        [scores], [tokens] = (each.tolist() for each in likeliest(logits.float().softmax(-1), tokenizer, top_k))
        found.append(LayerAnswer(layer, [tokenizer.decode([token]) for token in tokens], scores))
    return found


@dataclass(frozen=True)
class TokenWeights:
    """How much an answer rests on each token of the row that a model reads.

    Attributes:
        label: the answer.
        weights: (tokens,), special ones too; positive speaks for the answer; special tokens around the text have 0, its
            `[UNK]` has not.
        difference: of erasure the probability of the answer; of integrated gradients what the weights add up to.
    """

    label: str
    weights: NDArray[np.float64]
    difference: float


def read_for_weighing(predictor: Predictor, row: Row, method: str, most_tokens: int) -> EncodedExamples:
    """A text for `weigh_tokens`, tokenized: one row.

    Args:
        row: as the task reads it.
        method: `erasure` or `integrated_gradients`.
        most_tokens: that a text may have; each costs a pass of the model over all.

    Raises:
        InputError: the text is too long, or read in windows; or the model is an ensemble, reads words or pairs in both
            orders, has no `[MASK]`, or computes in bf16, in which no gradient is taken.
    """
    task, counts = predictor.task, ExampleCounts()
    encoded = predictor.encode(list(task.read_all([row])), counts)
    encoder = predictor.module.encoder
    tokenizer = predictor.tokenizer
    if predictor.others:
        raise InputError("an ensemble answers by several models: look at one of its members")
    if encoder.reads_words or tokenizer.reads_words:
        raise InputError("ELMo reads whole words, and has no [MASK] to hide them behind")
    if len(encoded.bounds) != 2:
        raise InputError("this text is read in several rows, windows or both orders of a pair: give a shorter one")
    if len(encoded.input_ids) > most_tokens:
        raise InputError(f"the text has {len(encoded.input_ids):,} tokens: up to {most_tokens} can be weighed")
    if counts.num_cut:
        raise InputError(f"the model reads {len(encoded.input_ids):,} tokens of this text: give a shorter one")
    if tokenizer.mask_id is None:
        raise InputError("the model has no [MASK] to hide tokens behind")
    if method != "erasure" and predictor.compute.dtype != torch.float32:
        raise InputError("integrated gradients are taken in fp32: load the model so, or take erasure")
    return encoded


def weigh_tokens(predictor: Predictor, encoded: EncodedExamples, method: str) -> TokenWeights:
    """Which tokens the label of a text rests on.

    Args:
        encoded: from `read_for_weighing`, for this `method`.
    """
    tokenizer = predictor.tokenizer
    ids = encoded.input_ids.tolist()
    segments = (np.arange(len(ids)) >= encoded.second_starts[0]).astype(int).tolist()
    if predictor.num_segments < 2:
        segments = [0] * len(ids)
    template = tokenizer.template
    around = {token for piece in (*template.single, *template.pair) for token in piece.ids}
    places = [place for place, token in enumerate(ids) if token not in around]
    with torch.no_grad():
        [logits] = _logits(predictor, [ids], [segments])
    answer = int(logits.argmax())
    weights = np.zeros(len(ids))
    if method == "erasure":
        weights[places], difference = _erasure(predictor, ids, segments, places, answer)
    else:
        weights[places], difference = _integrated_gradients(predictor, ids, segments, places, answer)
    return TokenWeights(predictor.task.labels[answer], weights, difference)


def _logits(predictor: Predictor, rows: list[list[int]], segments: list[list[int]]) -> Tensor:
    """(rows, labels) float32."""
    outputs: Tensor = predictor.module.outputs(pack(rows, segments).to(predictor.compute.device))
    return outputs.float().cpu()


def _probability(predictor: Predictor, logits: Tensor, answer: int) -> Tensor:
    if predictor.task.problem_type == "multi_label_classification":
        return logits[:, answer].sigmoid()
    return functional.softmax(logits, -1)[:, answer]


@torch.no_grad()
def _erasure(
    predictor: Predictor, ids: list[int], segments: list[int], places: list[int], answer: int
) -> tuple[NDArray[np.float64], float]:
    mask = predictor.tokenizer.mask_id
    rows = [ids, *([*ids[:place], mask, *ids[place + 1 :]] for place in places)]
    logits = torch.cat(
        [_logits(predictor, rows[at : at + 32], [segments] * len(rows[at : at + 32])) for at in range(0, len(rows), 32)]
    )
    whole, *without = _probability(predictor, logits, answer).double().tolist()
    return whole - np.array(without), whole


def _integrated_gradients(
    predictor: Predictor, ids: list[int], segments: list[int], places: list[int], answer: int
) -> tuple[NDArray[np.float64], float]:
    """By the midpoint rule; all points are computed in one batch."""
    embeddings: Any = predictor.module.encoder.embeddings
    masked = list(ids)
    for place in places:
        masked[place] = predictor.tokenizer.mask_id
    embedding = getattr(embeddings, "narrow", embeddings).word  # ELECTRA's may be narrower than its hidden states
    device = embedding.weight.device
    start, end = (embedding.weight[torch.tensor(row, device=device)].detach().float() for row in (masked, ids))
    shares = (torch.arange(NUM_STEPS) + 0.5) / NUM_STEPS
    points = torch.cat([start + share * (end - start) for share in shares]).requires_grad_()
    handle = embedding.register_forward_hook(lambda *_: points)
    try:
        with torch.enable_grad():
            logits = _logits(predictor, [ids] * NUM_STEPS, [segments] * NUM_STEPS)
            [gradients] = torch.autograd.grad(logits[:, answer].sum(), points)
    finally:
        handle.remove()
    mean = gradients.view(NUM_STEPS, len(ids), -1).mean(0)
    weights = (mean * (end - start)).sum(-1).double().cpu().numpy()[places]
    return weights, float(weights.sum())


@dataclass(frozen=True)
class SpanChances:
    """How probable it is that an answer begins, or ends, at each token of a passage; of its best window.

    Attributes:
        starts, ends: (tokens,) the characters of each token in the passage.
        begins, stops: (tokens,) probabilities among the tokens of the window, `no answer` included.
    """

    starts: list[int]
    ends: list[int]
    begins: list[float]
    stops: list[float]


def chances_of_spans(encoded: EncodedExamples, logits: Tensor) -> SpanChances:
    """Of the window of one example in which a start and an end are the likeliest.

    Args:
        encoded: one example, with its alignment.
        logits: (tokens, 2), for start and end; a third column, of answerability, is not read.
    """
    logits = logits[:, :2]
    starts, ends = (encoded.alignment[name].astype(np.int64) for name in ("starts", "ends"))
    in_passage = torch.from_numpy(starts >= 0)
    of_passage = logits.masked_fill(~in_passage[:, None], float("-inf"))
    first, end = max(pairwise(encoded.bounds), key=lambda bounds: float(of_passage[slice(*bounds)].amax(0).sum()))
    window, shown = slice(first, end), in_passage[first:end]
    begins, stops = logits[window].softmax(0)[shown].T.tolist()
    return SpanChances(starts[window][shown].tolist(), ends[window][shown].tolist(), begins, stops)
