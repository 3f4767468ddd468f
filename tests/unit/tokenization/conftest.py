"""Which tests run under which generation of the `tokenizers` library: the newer one opens and encodes, nothing else."""

from __future__ import annotations

from unmask.tokenization.library import CAN_TRAIN

collect_ignore = (
    []
    if CAN_TRAIN
    else [
        *("test_wordpiece.py", "test_bpe.py", "test_byte_bpe.py", "test_train.py", "test_tokenizer.py"),
        *("test_word_cache.py", "test_longest_match.py", "test_tokenizer_segmented.py"),
    ]
)
