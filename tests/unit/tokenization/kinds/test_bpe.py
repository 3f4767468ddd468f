"""BPE with an end-of-word mark: merges by hand, GPT-1's template, unknown characters, what it has no role for."""

from __future__ import annotations

import pytest

from support.trained import trained
from unmask.errors import ModelError, SettingsError
from unmask.tokenization.learning.train import learn_tokenizer
from unmask.tokenization.settings import TokenizerSettings

BPE = TokenizerSettings(kind="bpe", num_merges=4)
# Sennrich et al. (2016), section 3.2, without `widest`, whose pairs tie.
WORDS = ["low " * 5 + "lower " * 2 + "newest " * 6]
SPECIAL = ("<unk>", "<pad>", "_start_", "_delimiter_", "_classify_")


def test_merges_worked_by_hand() -> None:
    tokenizer, report = learn_tokenizer(WORDS, BPE.model_copy(update={"min_character_count": 1}))
    letters = sorted(set("lowernst"))
    assert tokenizer.token_strings[:5] == SPECIAL
    assert tokenizer.token_strings[5 : 5 + 2 * 8] == (*letters, *(f"{letter}</w>" for letter in letters))
    # `w e` is seen 8 times and `l o` 7. Then `e we`, `n e`, `we s` and `s t</w>` 6 times each: of equals, the pair that
    # is first by its ids is joined. After `e we` it is `n ewe`, before `s t</w>` and `ewe s`.
    merges = tokenizer.definition["model"]["merges"]
    assert merges == [["w", "e"], ["l", "o"], ["e", "we"], ["n", "ewe"]]
    assert tokenizer.token_strings[-4:] == ("we", "lo", "ewe", "newe")
    assert (report.vocab_size, report.alphabet_size) == (5 + 16 + 4, 8)
    assert tokenizer.tokens(tokenizer.encode_batch(["Lowest new"])[0]) == ["lo", "we", "s", "t</w>", "n", "e", "w</w>"]


TOKENIZER = trained(["a lower café, 국민의 국민은 국민."] * 4, kind="bpe", vocab_size=90, lowercase=True)


def test_framed_as_gpt1_frames_for_fine_tuning() -> None:
    start, delimiter, extract = (SPECIAL.index(f"_{name}_") for name in ("start", "delimiter", "classify"))
    (a,), (b,) = TOKENIZER.encode_batch(["a lower"]), TOKENIZER.encode_batch(["café"])
    single, pair = TOKENIZER.encode_inputs([("a lower", None), ("a lower", "café")])
    assert single.input_ids == [start, *a, extract]
    assert pair.input_ids == [start, *a, delimiter, *b, extract]
    assert pair.token_type_ids == [0] * len(pair.input_ids)
    assert (TOKENIZER.bos_id, TOKENIZER.sep_id, TOKENIZER.cls_id) == (start, delimiter, extract)
    (cut,) = TOKENIZER.encode_inputs([("a lower a lower", "café café")], max_length=7)
    assert (len(cut.input_ids), cut.truncated) == (7, True)
    with pytest.raises(SettingsError, match="no room for the 3 special tokens"):
        TOKENIZER.encode_inputs([("a", "b")], max_length=2)


def test_hangul_stays_whole_and_case_goes() -> None:
    (ids,) = TOKENIZER.encode_batch(["CAFÉ \u1100\u116e\u11a8\u1106\u1175\u11ab의"])
    assert TOKENIZER.decode(ids) == "cafe 국민의"
    cased = trained(["Café "] * 4, kind="bpe", vocab_size=90, lowercase=False)
    assert cased.decode(cased.encode_batch(["Café"])[0]) == "Café"


def test_an_unknown_character_is_unknown_by_itself() -> None:
    (ids,) = TOKENIZER.encode_batch(["lo☃☃er"])
    assert TOKENIZER.tokens(ids).count("<unk>") == TOKENIZER.count_unknown(ids) == 2
    assert TOKENIZER.unk_id == 0
    assert TOKENIZER.tokens(ids)[-1].endswith("r</w>")


def test_what_it_has_no_role_for_is_told() -> None:
    with pytest.raises(ModelError, match=r"the tokenizer has no mask_token \(it has unk_token <unk>, .*_classify_\)"):
        _ = TOKENIZER.mask_id
    assert TOKENIZER.vocabulary.mask_id is None
    with pytest.raises(ModelError, match="no eos_token"):
        _ = TOKENIZER.eos_id


def test_words_are_told_by_the_entry_before() -> None:
    assert not TOKENIZER.marks_words
    assert not TOKENIZER.continuation.any()


def test_a_word_that_no_language_has_is_not_learned_from() -> None:
    tokenizer, report = learn_tokenizer(["z" * 100_000, "ab ab ab"], TokenizerSettings(kind="bpe", vocab_size=50))
    assert not any(entry.startswith("zz") for entry in tokenizer.token_strings)
    assert report.unknown_word_count == 0
    assert len(tokenizer.encode_batch(["zzz"])[0]) == 3
