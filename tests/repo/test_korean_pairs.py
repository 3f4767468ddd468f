"""The Korean minimal pairs are what their templates make, sound, and spelt by the rules of Hangul."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from unmask.tasks.minimal_pairs.reading import Paradigm, read_paradigms

FIELDS = {"morphology", "syntax", "syntax_semantics", "semantics"}
# By the final consonant of the syllable before: after any, after none; ㄹ counts as none for 으로.
ALLOMORPHS = {"이": "가", "을": "를", "은": "는", "과": "와"}
ALLOMORPHS |= {"이나": "나", "이랑": "랑", "이라도": "라도", "으로": "로"}
FIRST_SYLLABLE, FINALS, RIEUL = 0xAC00, 28, 8


@pytest.fixture(scope="module")
def folder(samples_dir: Path) -> Path:
    return samples_dir / "pairs" / "ko"


@pytest.fixture(scope="module")
def paradigms(folder: Path) -> list[Paradigm]:
    return read_paradigms(folder)


@pytest.fixture
def generator(samples_dir: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(samples_dir / "pairs"))
    return importlib.import_module("make_ko")


@pytest.fixture(scope="module")
def kiwi() -> Any:
    kiwipiepy = pytest.importorskip("kiwipiepy", reason="needs kiwipiepy: pip install 'unmask[ko]'")
    return kiwipiepy.Kiwi(num_workers=1)


def fits(stem: str, particle: str) -> bool:
    """Whether a particle is the allomorph that follows the stem, by arithmetic on its last code point."""
    final = (ord(stem[-1]) - FIRST_SYLLABLE) % FINALS
    vowel_like = final == 0 or (final == RIEUL and particle in ("으로", "로"))
    return particle in (ALLOMORPHS.values() if vowel_like else ALLOMORPHS)


def test_the_arithmetic_of_finals() -> None:
    assert all(fits(*word) for word in (("책", "을"), ("나무", "를"), ("서울", "로"), ("서울", "은")))
    assert not any(fits(*word) for word in (("책", "를"), ("나무", "이"), ("집", "로"), ("서울", "으로")))


def test_paradigms_are_of_500_to_1000_distinct_pairs(paradigms: list[Paradigm]) -> None:
    assert len(paradigms) >= 20
    for paradigm in paradigms:
        assert 500 <= len(paradigm.pairs) <= 1_000
        assert len({pair.good for pair in paradigm.pairs}) == len({pair.bad for pair in paradigm.pairs})
        assert len({pair.good for pair in paradigm.pairs}) == len(paradigm.pairs)
        assert paradigm.term


def test_no_sentence_is_right_and_wrong(paradigms: list[Paradigm]) -> None:
    right = {pair.good for paradigm in paradigms for pair in paradigm.pairs}
    assert not right & {pair.bad for paradigm in paradigms for pair in paradigm.pairs}


def test_sentences_are_sentences(paradigms: list[Paradigm]) -> None:
    for paradigm in paradigms:
        for sentence in [sentence for pair in paradigm.pairs for sentence in (pair.good, pair.bad)]:
            assert re.fullmatch(r"[가-힣]+,?(?: [가-힣]+,?)*[.?!]", sentence), sentence
            assert 3 <= len(sentence.split()) <= 9, sentence


def test_rows_have_the_layout_of_blimp(folder: Path) -> None:
    for path in folder.glob("*.jsonl"):
        for line in path.read_text("utf-8").splitlines():
            row = json.loads(line)
            assert list(row) == ["sentence_good", "sentence_bad", "field", "linguistics_term", "UID"]
            assert row["UID"] == path.stem
            assert row["field"] in FIELDS


@pytest.mark.parametrize("name", ["particle_subject_object", "particle_topic_link", "particle_direction"])
def test_the_contrast_is_the_allomorph_that_does_not_fit(paradigms: list[Paradigm], name: str) -> None:
    paradigm = next(each for each in paradigms if each.name == name)
    other = ALLOMORPHS | {after_vowel: after_consonant for after_consonant, after_vowel in ALLOMORPHS.items()}
    for pair in paradigm.pairs:
        words = zip(pair.good.split(), pair.bad.split(), strict=True)
        [(good, bad)] = [both for both in words if both[0] != both[1]]
        ways = [(good.removesuffix(each), each) for each in other if good.endswith(each)]
        stem, particle = next(way for way in ways if bad == way[0] + other[way[1]])
        assert fits(stem, particle), pair.good
        assert not fits(stem, other[particle]), pair.bad


def test_particles_of_right_sentences_fit_their_nouns(paradigms: list[Paradigm], samples_dir: Path) -> None:
    templates = " ".join(path.read_text("utf-8") for path in (samples_dir / "pairs" / "ko_grammar").glob("*.yaml"))
    nouns = set(re.findall(r"(?<=[\[ ,])([가-힣]{2,})(?:/NN[PG])?(?=[],])", templates))
    ends = "|".join(sorted({*ALLOMORPHS, *ALLOMORPHS.values()}, key=len, reverse=True))
    found = 0
    for paradigm in paradigms:
        for word in [word.rstrip(".,?!") for pair in paradigm.pairs for word in pair.good.split()]:
            match = re.fullmatch(rf"([가-힣]+?)({ends})", word)
            if match and word not in nouns and match[1] in nouns:
                assert fits(match[1], match[2]), word
                found += 1
    assert found > 20_000


def test_the_files_are_what_the_generator_makes(folder: Path, generator: ModuleType, kiwi: Any, tmp_path: Path) -> None:
    """And so is the table in their README."""
    (tmp_path / "README.md").write_text((folder / "README.md").read_text("utf-8"), "utf-8")
    stated = generator.read_paradigms()
    generator.write(stated, generator.Joiner(kiwi), tmp_path)
    assert {path.name for path in folder.iterdir()} == {path.name for path in tmp_path.iterdir()}
    different = [path.name for path in tmp_path.iterdir() if path.read_bytes() != (folder / path.name).read_bytes()]
    assert not different, f"run samples/pairs/make_ko.py: {', '.join(different)}"
    assert all(len(paradigm.frames) >= 5 for paradigm in stated)


def test_kiwi_analyses_right_sentences_as_they_were_made(paradigms: list[Paradigm], kiwi: Any) -> None:
    """Their morphemes joined again are the sentence; Kiwi contracts 나에게 and 저에게, which may be long or short."""
    for paradigm in paradigms:
        for pair in paradigm.pairs[::50]:
            joined = kiwi.join(kiwi.tokenize(pair.good))
            assert joined == pair.good.replace("나에게", "내게").replace("저에게", "제게") or joined == pair.good
