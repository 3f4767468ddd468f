"""The heads on an encoder: those of pre-training, and those of fine-tuning by kind and family.

Devlin et al. 2019, sections 3.1 and 4; Clark et al. 2020, section 2. Every head sees only the hidden states that it
needs. The heads of fine-tuning are those of `transformers`, family by family, so that their directories open there.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unmask.models.dropout import dropout
from unmask.models.family import Activation, HeadKind
from unmask.models.kernels.products import Linear
from unmask.models.kernels.vocabulary_logits import vocabulary_logits
from unmask.models.layers import ACTIVATIONS, draw_truncated_normal, initialise
from unmask.models.settings import EncoderSettings
from unmask.models.sizes import Sizes


class MaskedLMHead(nn.Module):
    """Vocabulary logits: dense, activation, LayerNorm, then the word embeddings as decoder, with a bias of its own.

    The decoder is tied: `forward` is given the encoder's word embeddings, and holds no copy.

    Args:
        settings: of the encoder. Embeddings may be narrower than the hidden states (ELECTRA); a ModernBERT may leave
            out biases, or have a decoder of its own.
    """

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__()
        width = settings.embedding_width
        activation = settings.classifier_activation or settings.family.masked_lm_activation or settings.hidden_act
        self.dense = Linear(settings.hidden_size, width, settings.classifier_bias)
        self.norm = nn.LayerNorm(width, settings.layer_norm_eps, bias=settings.norm_bias)
        self.bias = nn.Parameter(torch.zeros(settings.vocab_size)) if settings.decoder_bias else None
        is_tied = settings.tie_word_embeddings
        self.weight = None if is_tied else nn.Parameter(torch.empty(settings.vocab_size, width))
        self.activation = ACTIVATIONS[activation]
        initialise(self, settings.initializer_range)
        if self.weight is not None:
            draw_truncated_normal(self.weight, width**-0.5)

    def forward(self, hidden_at_targets: Tensor, word_embeddings: Tensor) -> Tensor:
        """The `vocabulary_logits` at the targets alone, from their hidden states (targets, hidden)."""
        return vocabulary_logits(self.transform(hidden_at_targets), self.decoder(word_embeddings), self.bias)

    def decoder(self, word_embeddings: Tensor) -> Tensor:
        """(vocab, decoder_size): the word embeddings, unless it has a decoder of its own."""
        return word_embeddings if self.weight is None else self.weight

    def transform(self, hidden_at_targets: Tensor) -> Tensor:
        """What the decoder reads: (targets, decoder_size)."""
        transformed: Tensor = self.norm(self.activation(self.dense(hidden_at_targets)))
        return transformed


class NextSentenceHead(nn.Module):
    """Two logits from the pooled first token; class 0 is IsNext, 1 a random sentence, as in Google's code."""

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__()
        self.dense = Linear(settings.hidden_size, 2)
        initialise(self, settings.initializer_range)

    def forward(self, pooled: Tensor) -> Tensor:
        """(sequences, 2) from `pooled` (sequences, hidden)."""
        logits: Tensor = self.dense(pooled)
        return logits


class DiscriminatorHead(nn.Module):
    """ELECTRA's logit that a token was replaced: dense, activation, dense."""

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__()
        self.dense = Linear(settings.hidden_size, settings.hidden_size)
        self.output = Linear(settings.hidden_size, 1)
        self.activation = ACTIVATIONS[settings.hidden_act]
        initialise(self, settings.initializer_range)

    def forward(self, hidden: Tensor) -> Tensor:
        """(tokens,) from `hidden` (tokens, hidden)."""
        logits: Tensor = self.output(self.activation(self.dense(hidden)))
        return logits.squeeze(-1)


class CopyingHead(nn.Module):
    """The heads of "All-Tokens MLM" (Clark et al. 2020, section 3.4): of entries, and of copying what is shown."""

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__()
        self.masked_lm_head = MaskedLMHead(settings)
        self.copy_head = DiscriminatorHead(settings)

    def forward(self, hidden: Tensor, word_embeddings: Tensor) -> tuple[Tensor, Tensor]:
        """The logits of entries, (tokens, vocab), and of copying, (tokens,) float32, from `hidden` (tokens, hidden)."""
        return self.masked_lm_head(hidden, word_embeddings), self.copy_head(hidden).float()


class Classifier(nn.Module):
    """Dropout, then a linear layer: on the summary of a sequence, or on each token.

    Args:
        num_labels: 1 for a regression, and for multiple choice, which has one logit per alternative.
        bias: False: no bias, as on GPT-1.
    """

    def __init__(
        self, hidden_size: int, num_labels: int, dropout_prob: float, initializer_range: float, bias: bool = True
    ) -> None:
        super().__init__()
        self.dense = Linear(hidden_size, num_labels, bias)
        self.num_labels = num_labels
        self.dropout_prob = dropout_prob
        initialise(self, initializer_range)

    def forward(self, hidden: Tensor) -> Tensor:
        """(sequences or tokens, labels) from `hidden` (sequences or tokens, hidden)."""
        logits: Tensor = self.dense(dropout(hidden, self.dropout_prob, self.training))
        return logits


class TwoOrderClassifier(nn.Module):
    """GPT-1's classifier of two texts that have no order: the summaries of both orders are added (Radford et al. 2018,
    section 3.3), then dropout and a linear layer."""

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        self.dense = classifier.dense
        self.num_labels = classifier.num_labels
        self.dropout_prob = classifier.dropout_prob

    def forward(self, summaries: Tensor) -> Tensor:
        """(pairs, labels) from `summaries` (2 x pairs, hidden), the two of a pair one after the other."""
        added = summaries.view(-1, 2, summaries.shape[1]).sum(1)
        logits: Tensor = self.dense(dropout(added, self.dropout_prob, self.training))
        return logits


class DeepClassifier(nn.Module):
    """Dropout, dense, activation, dropout, linear: the classifier of families without a pooler, on the first token.

    Args:
        norm: behind the activation, as in ModernBERT, which has this head on every token too; None: none.
        bias: False: the dense layer has none.
        output_bias: False: the linear layer has none.
    """

    def __init__(
        self,
        hidden_size: int,
        num_labels: int,
        activation: Activation,
        input_dropout_prob: float,
        dropout_prob: float,
        initializer_range: float,
        norm: nn.LayerNorm | None = None,
        bias: bool = True,
        output_bias: bool = True,
    ) -> None:
        super().__init__()
        self.dense = Linear(hidden_size, hidden_size, bias)
        self.norm = nn.Identity() if norm is None else norm
        self.output = Linear(hidden_size, num_labels, output_bias)
        self.num_labels = num_labels
        self.activation = ACTIVATIONS[activation]
        self.input_dropout_prob = input_dropout_prob
        self.dropout_prob = dropout_prob
        initialise(self, initializer_range)

    def forward(self, hidden: Tensor) -> Tensor:
        """(sequences or tokens, labels) from `hidden` (sequences or tokens, hidden)."""
        inputs = dropout(hidden, self.input_dropout_prob, self.training)
        transformed = self.norm(self.activation(self.dense(inputs)))
        logits: Tensor = self.output(dropout(transformed, self.dropout_prob, self.training))
        return logits


Head = Classifier | DeepClassifier
"""What `new_head` builds."""


class WindowClassifier(nn.Module):
    """A classifier of texts that are read in windows, on the sum of their summaries, each weighed by how well it fits a
    learnt query: attention pooling (Yang et al. 2016, section 2.2, without the layer before the query).

    The query starts from 0, so that all windows count alike; a single window counts whole, whatever the query is.

    Args:
        classifier: of one summary.
    """

    def __init__(self, classifier: Head, hidden_size: int) -> None:
        super().__init__()
        self.classifier = classifier
        self.query = nn.Parameter(torch.zeros(hidden_size))
        self.num_labels = classifier.num_labels

    def forward(self, summaries: Tensor, units: Tensor, num_units: int) -> Tensor:
        """(units, labels).

        Args:
            summaries: (windows, hidden) float.
            units: (windows,) int64: of which unit each is; every unit has one.
        """
        states = summaries.float()
        scores = (states * self.query.float()).sum(-1) * states.shape[1] ** -0.5
        largest = scores.new_zeros(num_units).scatter_reduce(0, units, scores, "amax", include_self=False)
        weights = (scores - largest[units]).exp()
        weights = weights / weights.new_zeros(num_units).index_add(0, units, weights)[units]
        pooled = states.new_zeros(num_units, states.shape[1]).index_add(0, units, weights[:, None] * states)
        logits: Tensor = self.classifier(pooled.to(summaries.dtype))
        return logits


def needs_pooler(settings: Sizes, kind: HeadKind) -> bool:
    """Whether an encoder of these settings must have a pooler for this kind of head; else it must have none."""
    return kind in settings.family.pooled and not settings.causal


def new_head(kind: HeadKind, settings: Sizes, num_labels: int, dropout_prob: float | None = None) -> Head:
    """A fresh head for an encoder of these sizes.

    Args:
        kind: `sequence_classification` takes `encoder.summary(batch)` to (sequences, num_labels), `multiple_choice` to
            (sequences, 1); `token_classification` takes `encoder(batch)` to (tokens, num_labels), `question_answering`
            to (tokens, 2), start and end.
        num_labels: 1 for multiple choice, 2 for question answering.
        dropout_prob: None takes the encoder's; question answering has none, as in the released code of BERT.
    """
    prob = settings.hidden_dropout_prob if dropout_prob is None else dropout_prob
    assert kind in settings.family.heads, f"{settings.family.title} has no head for {kind}"
    width, std = settings.hidden_size, settings.initializer_range
    style = settings.family.heads[kind]
    assert style is not None, "texts read by ELMo have an `ElmoClassifier`"
    if style.activation is None:
        return Classifier(width, num_labels, prob if style.drops else 0.0, std, style.bias)
    inputs_prob = prob if style.drops_inputs else 0.0
    if style.activation != "sizes":
        return DeepClassifier(width, num_labels, style.activation, inputs_prob, prob, std)
    assert isinstance(settings, EncoderSettings), "ELMo has heads of its own"
    activation, bias = settings.classifier_activation or settings.hidden_act, settings.classifier_bias
    norm = nn.LayerNorm(width, settings.layer_norm_eps, bias=settings.norm_bias)
    head = DeepClassifier(width, num_labels, activation, inputs_prob, prob, std, norm, bias, bias or style.bias)
    draw_truncated_normal(head.output.weight, width**-0.5)  # as in the released code
    return head
