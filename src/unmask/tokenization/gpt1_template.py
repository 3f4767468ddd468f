"""GPT-1's tokenizer without its template, for pre-trained models, and with it, for fine-tuning (see bpe.py).

Pre-training shows contiguous text (Radford et al. 2018, section 4.1): the tokenizer saved with its model adds
nothing, so that `transformers` continues the given text and not an extract token that the model never saw. Fine-tuning
adds start, delimiter and extract tokens to its inputs (section 3.3). If a vocabulary has none, like the published
one, they are appended under the names of the released code, and the model must get embedding rows for them.
"""

from __future__ import annotations

import json
from pathlib import Path

from unmask.tokenization.added_tokens import BY_ID
from unmask.tokenization.definition import json_bytes, special_added_tokens
from unmask.tokenization.directory import CONFIG, INPUT_NAMES, OpenedDirectory
from unmask.tokenization.kinds.bpe import ROLES, SPECIAL_TOKENS, gpt1_template
from unmask.tokenization.opening import Tokenizer, open_tokenizer
from unmask.tokenization.tokenizer import TextTokenizer


def without_template(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer to save with a left-to-right language model: GPT-1's without its template, any other unchanged.

    `load_tokenizer_with_template` restores the template. Other kinds keep theirs, since they serve other models too.
    """
    if isinstance(tokenizer, TextTokenizer) and tokenizer.kind == "bpe":
        return tokenizer.without_template()
    return tokenizer


def load_tokenizer_with_template(path: str | Path) -> tuple[Tokenizer, tuple[str, ...]]:
    """Opens a tokenizer that adds the special tokens of fine-tuning to texts and pairs, with its segmenter loaded.

    A GPT-1 tokenizer that lacks the three tokens or the template gets them; any other is opened as in `open_tokenizer`.

    Returns:
        The tokenizer, and the entries that were appended to its vocabulary, at most three.

    Raises:
        ModelError: as in `open_tokenizer`.
        SettingsError: the segmenter needs a package that is not installed.
    """
    tokenizer = open_tokenizer(path)
    if not isinstance(tokenizer, TextTokenizer):
        return tokenizer, ()
    tokenizer.load_segmenter()
    opened = tokenizer.opened
    has_template = any(piece.ids for piece in tokenizer.template.single)
    if tokenizer.kind != "bpe" or (has_template and set(ROLES) <= set(opened.special_tokens)):
        return tokenizer, ()
    special_tokens = {role: SPECIAL_TOKENS[role] for role in ROLES} | dict(opened.special_tokens)
    entries = {entry: index for index, entry in enumerate(tokenizer.token_strings)}
    new = tuple(dict.fromkeys(special_tokens[role] for role in ROLES if special_tokens[role] not in entries))
    entries |= {entry: tokenizer.vocab_size + number for number, entry in enumerate(new)}
    definition = tokenizer.definition
    kept = [token for token in definition.get("added_tokens") or [] if token["content"] not in special_tokens.values()]
    added = [*kept, *special_added_tokens(entries, special_tokens.values())]
    definition["added_tokens"] = sorted(added, key=lambda token: token["id"])
    definition["post_processor"] = gpt1_template(entries, special_tokens)
    config = json.loads(opened.files.get(CONFIG, b"{}"))
    config.pop(BY_ID, None)  # tokenizer.json has them
    # GPT-1's own class would rebuild the steps, without the template.
    config |= {"tokenizer_class": "PreTrainedTokenizerFast", INPUT_NAMES: ["input_ids", "attention_mask"]}
    files = {
        "tokenizer.json": json_bytes(definition),
        CONFIG: json_bytes(config | special_tokens),
        "special_tokens_map.json": json_bytes(special_tokens),
    }
    return TextTokenizer(OpenedDirectory(files, special_tokens, opened.segmenter), tokenizer.where), new
