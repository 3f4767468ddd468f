"""Targets that are runs of words: random spans, named entities, noun phrases (SpanBERT, sections 3.1 and 6.1).

Spans are drawn until the budget of a sequence, `target_prob` of its tokens, is spent; the last one is cut there, in the
middle of a word if need be, as in the released code. Spans that overlap or touch become one. None crosses a special
token or the end of a sequence.

Departures, all from the released code: every word is equally likely to start a span, as the paper says (that code
draws a token evenly and takes its word); a span may start inside an earlier one (that code draws such a start again),
though only once at each word; the budget is that of BERT, rounded and with the special tokens counted (there it is
rounded up, without them); random replacements are drawn evenly, as BERT's (there by their frequency in the text); and
beside entities and noun phrases single words are drawn, as the paper says (there runs of words of random length).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from unmask.batch import IGNORE_INDEX, Batch
from unmask.chance import Stream, uniform
from unmask.objectives.masks.drawing import NOT_DRAWN, TokenTable, token_table
from unmask.objectives.masks.masking import find_words

ANNOTATION_PROB = 0.5
"""Share of the draws that are annotations, where there is one left (section 6.1)."""


def choose_spans(
    batch: Batch, target_prob: float, continuation: Tensor, span_length_prob: float, max_span_words: int
) -> Tensor:
    """Chooses runs of words, each of a length by `span_lengths`.

    An example: `[CLS]`, ten words of one token, `[SEP]`. A fifth of these 12 tokens, rounded, is a budget of 2, so two
    starts suffice: say first token 4 with a length of 1, then token 9 with 4. `starts` is [4, 9], `lengths` [1, 4],
    `span` [0, 1, 1, 1, 1], `distance` [0, 0, 1, 2, 3] and `word` [4, 9, 10, 10, 10]: the text ends after token 10.
    `reached` is 0 at token 4, 1 at 9 and 10, and the budget takes 4 and 9.

    The other arguments are those of `span_lengths`. Returns (tokens,) bool, True for a target, as `choose_words`.
    """
    table, words = token_table(batch), find_words(batch, continuation)
    turns = table.ranks(table.draw(Stream.CHOICE).masked_fill(~words.begins, NOT_DRAWN))
    # The spans of a sequence's first turns suffice to spend its budget: each covers at least one word.
    starts = torch.nonzero(words.begins & (turns < table.of_sequence(table.budgets(target_prob)))).squeeze(1)
    lengths = span_lengths(table.draw(Stream.LENGTH, starts), span_length_prob, max_span_words).clamp(max=table.width)
    span = torch.repeat_interleave(lengths)  # for each word of each span, the number of the span
    distance = torch.arange(len(span), device=span.device) - (torch.cumsum(lengths, 0) - lengths)[span]
    number = torch.cumsum(words.begins, 0) - 1
    word = words.first[(number[starts][span] + distance).clamp(max=len(words.first) - 1)]  # by its first token
    run = torch.cumsum(table.special, 0) + table.sequence  # another one after a special token
    start = starts[span]
    word = torch.where(run[word] == run[start], word, start)
    reached = torch.full_like(turns, table.width)  # at first tokens: the first turn whose span reaches the word
    reached.scatter_reduce_(0, word, turns[start], "amin")
    return table.take_in_turn(reached.index_select(0, words.start), target_prob)


def span_lengths(draws: Tensor, prob: float, most: int) -> Tensor:
    """Lengths by the geometric distribution truncated and renormalised: P(n) ~ prob (1 - prob)^(n - 1), 1 <= n <= most.

    With .2 and 10 their mean is 3.80 (section 3.1, figure 2). Returns (n,) int64 for `draws` (n,) float64 in [0, 1).
    """
    longer = math.log1p(-prob)  # the logarithm of the chance that a length grows by one more
    quantiles = torch.log1p(draws * math.expm1(most * longer)) / longer  # the distribution function, inverted
    return quantiles.long().clamp(max=most - 1) + 1


def choose_annotated(batch: Batch, target_prob: float, continuation: Tensor, annotation: Tensor) -> Tensor:
    """Chooses annotations and words: each draw is one or the other with the same chance, words alone once no annotation
    is left. Drawing what is already a target spends nothing.

    Args:
        annotation: (tokens,) int64, 0 where there is none, else a number that its tokens share.

    Returns:
        As `choose_words`.
    """
    table, words = token_table(batch), find_words(batch, continuation)
    annotated = (annotation > 0) & ~table.special
    continues = (torch.roll(annotation, 1) == annotation) & ~torch.roll(table.special, 1) & (table.position > 0)
    opens = annotated & ~continues
    places = torch.arange(batch.num_tokens, device=opens.device)
    opening = torch.cummax(places * opens, 0).values  # (tokens,): of an annotated token, its annotation's first

    word_draws = table.draw(Stream.CHOICE).masked_fill(~words.begins, NOT_DRAWN)
    word_rank = table.ranks(word_draws).index_select(0, words.start)
    its_rank = table.ranks(table.draw(Stream.ANNOTATION).masked_fill(~opens, NOT_DRAWN)).index_select(0, opening)
    # Two draws for each token of the budget suffice to spend it: half of them, at least, are words or are annotations.
    most = 2 * int(table.budgets(target_prob).max())
    word_turn, its_turn = _turns(table, words.begins, opens, most)
    last = word_turn.shape[1] - 1
    turns = word_turn[table.sequence, word_rank.clamp(max=last)]
    its_turns = its_turn[table.sequence, its_rank.clamp(max=last)]
    return table.take_in_turn(torch.where(annotated, torch.minimum(turns, its_turns), turns), target_prob)


def _turns(table: TokenTable, begins_word: Tensor, begins_annotation: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """At which draw the n-th word of each sequence comes, and the n-th annotation.

    Args:
        begins_word, begins_annotation: (tokens,) bool.
        most: draws that are made, if there are that many words and annotations.

    Returns:
        (sequences, draws + 1) int64 each; the number of draws where the n-th is not drawn and in the last column.
    """
    num_words, num_annotations = (table.spread(each, fill=0).sum(1) for each in (begins_word, begins_annotation))
    num_draws = min(most, int((num_words + num_annotations).max()))
    draws = torch.arange(num_draws, device=num_words.device).expand(len(table.keys), num_draws)
    keys = table.keys[:, None].expand_as(draws)
    coins = uniform(keys.reshape(-1), draws.reshape(-1), Stream.KIND).view_as(draws) < ANNOTATION_PROB
    is_annotation = coins & (torch.cumsum(coins, 1) <= num_annotations[:, None])
    number = torch.cumsum(is_annotation, 1)
    turns = draws.new_full((2, len(table.keys), num_draws + 1), num_draws)
    turns[0].scatter_(1, torch.where(is_annotation, num_draws, draws - number), draws)
    turns[1].scatter_(1, torch.where(is_annotation, number - 1, num_draws), draws)
    turns[:, :, num_draws] = num_draws
    word_turn, annotation_turn = turns
    return word_turn, annotation_turn


def find_spans(batch: Batch, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """The spans that targets make: the longest runs of them in a sequence, so those that overlap or touch are one.

    >>> from unmask.batch import pack
    >>> chosen = torch.tensor([0, 1, 1, 0, 1, 1, 0]).bool()  # the fifth token ends a sequence, the sixth begins one
    >>> first, last = find_spans(pack([[0, 0, 0, 0, 0], [0, 0]]), chosen)
    >>> first.tolist(), last.tolist()
    ([1, 4, 5], [2, 4, 5])

    Args:
        chosen: (tokens,) bool, the targets.

    Returns:
        (spans,) int64 each: the places of the first and of the last token of every span.
    """
    begins_sequence = batch.position_ids == 0
    before = torch.roll(chosen, 1) & ~begins_sequence
    after = torch.roll(chosen, -1) & ~torch.roll(begins_sequence, -1)
    return torch.nonzero(chosen & ~before).squeeze(1), torch.nonzero(chosen & ~after).squeeze(1)


def describe_spans(batch: Batch, most: int) -> list[str]:
    """The lengths of the spans in each of the first sequences of a masked batch."""
    first, last = find_spans(batch, batch.columns["labels"] != IGNORE_INDEX)
    sequence = batch.sequence_of_token()[first]
    lines = []
    for number in range(most):
        sizes = (last - first + 1)[sequence == number].tolist()
        listed = " and ".join(filter(None, [", ".join(map(str, sizes[:-1])), *map(str, sizes[-1:])]))
        lines.append(f"spans of {listed} tokens" if sizes else "no span")
    return lines


def describe_span_lengths(batches: Sequence[Batch]) -> list[tuple[str, str]]:
    """How many spans masked batches have, and how long they are."""
    ends = [find_spans(batch, batch.columns["labels"] != IGNORE_INDEX) for batch in batches]
    sizes = torch.cat([last - first + 1 for first, last in ends])
    if not len(sizes):
        return [("spans", "none")]
    mean = f"mean {float(sizes.float().mean()):.1f}, {int(sizes.min())} to {int(sizes.max())}"
    num_sequences = sum(batch.num_sequences for batch in batches)
    return [("spans in a sequence", f"{len(sizes) / num_sequences:.1f}"), ("tokens in a span", mean)]
