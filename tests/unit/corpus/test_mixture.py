"""Mixtures: shares come out as asked, and the same documents are taken every time."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.files import write
from unmask.corpus.mixture import CorpusInMixture, MixtureSettings, read_mixture, take, times_taken
from unmask.errors import InputError, SettingsError


def mixture(exponent: float = 1, size: float = 1, **weights: float) -> MixtureSettings:
    corpora = {name: CorpusInMixture(text=[f"{name}.txt"], weight=weight) for name, weight in weights.items()}
    return MixtureSettings(corpora=corpora, exponent=exponent, size=size)


def test_exponents_by_hand() -> None:
    # 900 and 100 bytes: their square roots 30 and 10 make shares of 3/4 and 1/4 of 1,000 bytes.
    assert times_taken(mixture(0.5, en=1, ko=1), {"en": 900, "ko": 100}) == pytest.approx({"en": 750 / 900, "ko": 2.5})
    assert times_taken(mixture(0, en=1, ko=1), {"en": 900, "ko": 100}) == pytest.approx({"en": 500 / 900, "ko": 5})
    assert times_taken(mixture(1, en=1, ko=1), {"en": 900, "ko": 100}) == pytest.approx({"en": 1, "ko": 1})


def test_weights_by_hand() -> None:
    # 900 x 1 and 100 x 3: shares of 3/4 and 1/4; twice as much text in all.
    times = times_taken(mixture(1, size=2, en=1, ko=3), {"en": 900, "ko": 100})
    assert times == pytest.approx({"en": 1500 / 900, "ko": 5})
    # With square roots 30 x 1 and 10 x 4: the exponent is none of the weights'.
    times = times_taken(mixture(0.5, en=1, ko=4), {"en": 900, "ko": 100})
    assert times == pytest.approx({"en": 3000 / 7 / 900, "ko": 4000 / 7 / 100})


@given(
    exponent=st.floats(0, 1),
    size=st.floats(0.1, 10),
    corpora=st.dictionaries(st.sampled_from("abcd"), st.tuples(st.floats(0.1, 10), st.integers(1, 10**9)), min_size=1),
)
def test_the_mixture_is_as_large_as_asked(exponent: float, size: float, corpora: dict[str, tuple[float, int]]) -> None:
    sizes = {name: num_bytes for name, (_, num_bytes) in corpora.items()}
    times = times_taken(mixture(exponent, size, **{name: weight for name, (weight, _) in corpora.items()}), sizes)
    assert sum(times[name] * sizes[name] for name in sizes) == pytest.approx(size * sum(sizes.values()))


def test_a_corpus_without_text_is_refused() -> None:
    with pytest.raises(InputError, match="corpus 'ko' of the mixture has no text: leave it out, or give it some"):
        times_taken(mixture(1, en=1, ko=1), {"en": 5, "ko": 0})


@pytest.mark.parametrize("times", [0.0, 0.3, 1.0, 2.7])
def test_documents_are_taken_so_often_and_stay_in_order(times: float) -> None:
    taken = list(take(range(20_000), "en", times, seed=3))
    assert taken == sorted(taken)
    # 6 standard deviations of the mean of 20,000 draws of a fair coin at most: 6 x .5 / sqrt(20,000) = .021
    assert len(taken) / 20_000 == pytest.approx(times, abs=0.022)
    assert set(Counter(taken).values()) <= {int(times), int(times) + 1} - {0}


def test_the_draw_depends_on_corpus_and_seed_alone() -> None:
    def drawn(name: str, seed: int) -> list[int]:
        return list(take(range(100), name, 0.5, seed))

    assert drawn("en", 0) == drawn("en", 0)
    assert len({tuple(drawn(name, seed)) for name in ("en", "ko") for seed in (0, 1)}) == 4
    assert drawn("en", 0)[:10] == list(take(range(1000), "en", 0.5, 0))[:10]


def test_paths_are_seen_from_the_mixtures_folder(tmp_path: Path) -> None:
    text = "exponent: 0.7\ncorpora:\n  en: {text: [a.txt, b/*.txt]}\n  ko: {text: [k.txt], weight: 2}\n"
    read = read_mixture(write(tmp_path / "mixture.yaml", text))
    assert read.exponent == 0.7
    assert read.corpora["en"].text == [str(tmp_path / "a.txt"), str(tmp_path / "b/*.txt")]
    assert read.corpora["ko"].weight == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("corpora: {}", "corpora"),
        ("corpora: {en: {text: []}}", "text"),
        ("corpora: {en: {text: [a.txt], wieght: 2}}", "weight"),
        ("corpora: {en: {text: [a.txt], weight: 0}}", "weight"),
        ("exponent: 1.5\ncorpora: {en: {text: [a.txt]}}", "exponent"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        read_mixture(write(tmp_path / "mixture.yaml", text))
