"""What the program needs to know of an architecture. PyTorch is not imported: recipes are read without it.

An architecture is a file with a `Family` (`unmask.models.families`), which names the class of its encoder, the file of
that class, an import and a line of `unmask.models.families.table.ARCHITECTURES`, and rows of tests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

HeadKind = Literal["sequence_classification", "token_classification", "question_answering", "multiple_choice"]
"""What a fine-tuned model answers, as in the names of `transformers`' classes."""

Part = (
    Literal["pooler", "masked_lm_head", "next_sentence_head", "discriminator_head", "causal_lm", "softmax"] | HeadKind
)
"""What a model has beside embeddings and blocks. `causal_lm` has no weights of its own; `softmax` is ELMo's."""

Activation = Literal["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "swish", "mish", "tanh"]
"""The names in `unmask.models.layers.ACTIVATIONS`: `gelu` is exact, `gelu_new` and `gelu_pytorch_tanh` approximate it
by tanh."""


@dataclass(frozen=True)
class HeadStyle:
    """How a head of fine-tuning is built: a linear layer, perhaps behind a dense layer as wide as the hidden states.

    Attributes:
        activation: behind the dense layer; None: there is no such layer. `sizes`: as the sizes say, which say whether
            it has a bias too, and LayerNorm follows.
        drops_inputs: dropout before the dense layer.
        drops: dropout before the linear layer.
        bias: of the linear layer; False: none, but with `sizes` where they say so.
    """

    activation: Activation | Literal["sizes", None] = None
    drops_inputs: bool = False
    drops: bool = True
    bias: bool = True


Names = dict[str, tuple[str, ...]]
"""Our name of a module -> theirs; several if ours stacks theirs."""

BERT_KEYS = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act"),
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "max_position_embeddings", "type_vocab_size"),
    *("initializer_range", "layer_norm_eps", "pad_token_id"),
)
"""Fields of `EncoderSettings` that `config.json` has under the same names."""

PRESETS: dict[str, dict[str, int]] = {
    "tiny": {"num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 2},
    "mini": {"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4},
    "small": {"num_hidden_layers": 4, "hidden_size": 512, "num_attention_heads": 8},
    "medium": {"num_hidden_layers": 8, "hidden_size": 512, "num_attention_heads": 8},
    "base": {"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12},
    "large": {"num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16},
}
"""The released BERTs: Base and Large of the paper, the rest of Turc et al. 2019 ("Well-Read Students Learn Better")."""


@dataclass(frozen=True)
class ModelClass:
    """A class of `transformers`, or of our own, which `config.json` names.

    Attributes:
        parts: what it has beside embeddings and blocks. A bare encoder may lack its pooler, and always does if it is
            causal.
        may_be_left: parts whose weights may be there as well: released models call themselves masked LMs, and hold
            more.
        may_be_causal: whether `is_decoder` may be true. A class that also has the part `causal_lm` must have it true.
        refused: key -> (the only value that loads, also taken where the key is missing; what that value means, for the
            message).
        dropout_key: of its head, and what is meant if it is left out.
    """

    parts: frozenset[Part] = frozenset()
    may_be_left: tuple[Part, ...] = ()
    may_be_causal: bool = False
    refused: Mapping[str, tuple[Any, str]] = field(default_factory=dict)
    dropout_key: tuple[str, float | None] = ("classifier_dropout", None)


@dataclass(frozen=True)
class WeightNames:
    """The names of a family's weights in the Hugging Face layout.

    Attributes:
        prefix: comes before the encoder's names in a directory that has a head.
        embeddings: of the encoder.
        layer: comes before the number of a block.
        block: of each block.
        parts: of the other parts; the pooler belongs to the encoder, and has the prefix.
        tied: weights that some directories hold twice -> the one that they must equal.
        constants: names, without the prefix, of what older versions of `transformers` stored among the weights.
        transposed: endings of the names of blocks' matrices that are stored with the inputs first.
    """

    prefix: str
    embeddings: Names
    layer: str
    block: Names
    parts: dict[Part, Names] = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)
    constants: re.Pattern[str] = re.compile(r"embeddings\.(position|token_type)_ids")
    transposed: tuple[str, ...] = ()

    @property
    def pooler_prefix(self) -> str:
        return f"{self.prefix}pooler."

    @property
    def encoder_prefixes(self) -> tuple[str, ...]:
        """What the encoder's names begin with, without the prefix."""
        embeddings = {names[0].split(".")[0] + "." for names in self.embeddings.values()}
        return (*sorted(embeddings), self.layer, "pooler.")

    @property
    def head_prefixes(self) -> tuple[str, ...]:
        """What the names of any head begin with, the pooler aside."""
        theirs = [name for part in self.parts.values() for names in part.values() for name in names]
        return tuple(sorted({name.split(".")[0] + "." for name in (*theirs, *self.tied)} - {"pooler."}))


@dataclass(frozen=True)
class Family:
    """Everything that the program needs to know of an architecture.

    Attributes:
        name: the value of `model.architecture`.
        title: how messages call it.
        encoder: the class of its encoder, `package.module:Class`, imported when one is built. It gets its settings,
            and whether it has a pooler if there are any.
        model_type: in `config.json`.
        classes: those that `config.json` may name; one with no part but perhaps a pooler is a bare encoder.
        tokenizer: the kind that it has in its paper, and that programs expect which open a saved one.
        defaults: values that differ from `EncoderSettings`' defaults; they hold for keys that its `config.json` leaves
            out.
        keys: fields of `EncoderSettings` and their keys in its `config.json`. It has no other settings.
        fixed_keys: keys of its `config.json` that say the same for every model, where leaving them out would say
            something else.
        flatten_config: `config.json` with the keys above, where it may have others for them; None: it has none.
        activations: published names of `hidden_act`, and ours, where they differ.
        heads: of fine-tuning, by kind; None: of a class of its own.
        pooled: kinds of heads that read the pooled first token.
        feed_forward_factor: `intermediate_size` / `hidden_size` where a recipe and its preset give only the latter.
        masked_lm_activation: of its masked-LM head; None: `hidden_act`.
        left_to_right: its tokens never see later ones.
        may_be_causal: so do those of a model with `causal` True.
        may_read_left_to_right: so do those of the sequences of which `Batch.left_to_right` says it.
        reads_bare_text: without special tokens around it (Radford et al. 2018, section 4.1).
        reads_words: by their characters, and the two texts of a pair apart, as ELMo does.
        is_recurrent: it has no attention, and no position embeddings.
        in_transformers: `transformers` has a class for it.
        is_gated: its feed-forward has a third matrix, for the gate.
        deepen: the function, `package.module:function`, that gives an encoder more layers and leaves its hidden states
            as they are: (encoder, layers) -> encoder. None: the family has none, and its models keep their depth.
        positions_after_padding: positions are counted from `pad_token_id` + 1.
    """

    name: str
    title: str
    encoder: str
    model_type: str
    classes: Mapping[str, ModelClass]
    weights: WeightNames
    tokenizer: str
    presets: Mapping[str, Mapping[str, Any]]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=lambda: {key: key for key in BERT_KEYS})
    fixed_keys: Mapping[str, Any] = field(default_factory=dict)
    flatten_config: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    activations: Mapping[str, Activation] = field(default_factory=dict)
    heads: Mapping[HeadKind, HeadStyle | None] = field(
        default_factory=lambda: {
            "sequence_classification": HeadStyle(),
            "token_classification": HeadStyle(),
            "question_answering": HeadStyle(drops=False),
            "multiple_choice": HeadStyle(),
        }
    )
    pooled: frozenset[HeadKind] = frozenset()
    feed_forward_factor: float = 4
    masked_lm_activation: Activation | None = None
    left_to_right: bool = False
    may_be_causal: bool = False
    may_read_left_to_right: bool = False
    reads_bare_text: bool = False
    reads_words: bool = False
    is_recurrent: bool = False
    in_transformers: bool = True
    is_gated: bool = False
    deepen: str | None = None
    positions_after_padding: bool = False

    def has(self, part: Part) -> bool:
        """Whether some class of the family has this part."""
        return any(part in each.parts for each in self.classes.values())

    def class_with(self, parts: frozenset[Part]) -> str:
        """The name of the class that has exactly these parts; a bare encoder may be without its pooler."""
        for name, its in self.classes.items():
            if parts == its.parts or (not parts and its.parts == frozenset({"pooler"})):
                return name
        raise AssertionError(f"no {self.name} has exactly {sorted(parts)}")
