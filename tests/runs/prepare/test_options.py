"""The options of `prepare` from end to end: every way in, the account, mixtures; and words that mean nothing, told."""

from __future__ import annotations

import gzip
import json
import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from support.commands import Command, check_refused, tree_of, type_in, write_files
from support.corpora import GOOD, Files, table
from support.files import json_lines
from unmask.errors import SettingsError
from unmask.store.encoding import held_out_hash
from unmask.store.manifest import manifest_checksum
from unmask.store.preparation import prepare
from unmask.store.store import TokenStore
from unmask.tokenization.learning.from_files import train_tokenizer
from unmask.tokenization.tokenizer import load_tokenizer

FIXTURES = Path(__file__).parents[2] / "unit" / "corpus" / "formats" / "fixtures"


def stored_texts(store: TokenStore) -> list[str]:
    """The documents of a store as its tokens tell them."""
    tokenizer = load_tokenizer(store.tokenizer_directory)
    return [tokenizer.decode(store.document(n).tokens.tolist()) for n in range(store.num_documents)]


def check_account(store: TokenStore) -> dict[str, Any]:
    """What came in is what was dropped and removed, and what went out."""
    text: dict[str, Any] = store.manifest["text"]
    dropped, removed = text["dropped"].values(), text["removed"].values()
    assert text["documents_read"] == text["documents"] + sum(amount["count"] for amount in dropped)
    gone = sum(amount["utf8_bytes"] for amount in [*dropped, *removed])
    assert text["bytes_read"] == text["utf8_bytes"] + gone
    return text


# --------------------------------------------------------------------------------------------------------- ways in

ROWS = ["the dog barks", "a fox is here"]
LINES = json_lines(*({"body": row, "text": 1} for row in ROWS))


def packed_with_a_long_window(content: bytes) -> bytes:
    """As `zstd --long=28` packs: twice the window that readers allow unasked. Large public dumps have up to 31."""
    settings = zstandard.ZstdCompressionParameters(window_log=28)
    packer = zstandard.ZstdCompressor(compression_params=settings).compressobj()
    return packer.compress(content) + packer.flush()


WAYS_IN: dict[str, tuple[Files, list[str]]] = {
    "JSON": ({"a.jsonl": LINES}, ["--column", "body"]),
    "CSV": ({"a.csv": 'id,body\n1,the dog barks\n2,"a fox is here"\n'}, ["--column", "body"]),
    "CSV in a gzip file": ({"a.csv.gz": gzip.compress(b"body\nthe dog barks\na fox is here\n")}, ["--column", "body"]),
    "a long zstd window": ({"a.jsonl.zst": packed_with_a_long_window(LINES.encode())}, ["--column", "body"]),
    "TSV": ({"a.tsv": "id\tbody\n1\tthe dog barks\n2\ta fox is here\n"}, ["--column", "body"]),
    "a table called .txt": (
        {"a.txt": "id\tbody\n1\tthe dog barks\n2\ta fox is here\n"},
        ["--column", "body", "--separator", "tab"],
    ),
    "Parquet": ({"a.parquet": table(n=[1, 2], body=ROWS)}, ["--column", "body"]),
    "text": ({"a.txt": "the dog barks\n\na fox is here\n"}, []),
    "Markdown": ({"a.md": "---\ntitle: x\n---\n**the** [dog](x) barks\n", "b.md": "* a fox `is` here\n"}, []),
    "a folder": ({"in/a.txt": "the dog barks", "in/b/c.txt": "a fox is here", "in/d.pdf": "x"}, []),
    "text of another suffix": ({"a.raw": LINES}, ["--format", "jsonl", "--column", "body"]),
}


@pytest.mark.parametrize(("files", "options"), WAYS_IN.values(), ids=WAYS_IN.keys())
def test_every_format_becomes_the_same_store(
    unmask: Command, place: Path, tokenizer: Path, files: Files, options: list[str]
) -> None:
    write_files(files)
    named = sorted({name.partition("/")[0] for name in files})
    words = ["prepare", *named, "--tokenizer", tokenizer, "--out", "made", "--workers", 1, *options]
    code, output, errors = unmask(*words)
    assert code == 0, errors
    store = TokenStore(Path("made"))
    assert stored_texts(store) == ROWS
    assert check_account(store)["documents"] == 2
    told = f"2 sentences, {store.num_tokens} tokens, 0 unknown tokens, 0 documents without tokens\n"
    assert f"wrote 2 documents, {told}" in output


@pytest.mark.parametrize(
    "pack", [bytes, gzip.compress, zstandard.ZstdCompressor().compress], ids=["plain", "gz", "zst"]
)
def test_standard_input(
    unmask: Command, place: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch, pack: Callable[[bytes], bytes]
) -> None:
    type_in(monkeypatch, pack(LINES.encode()))
    words = ["--tokenizer", tokenizer, "--out", "made", "--workers", 1, "--format", "jsonl", "--column", "body"]
    code, _, errors = unmask("prepare", "-", *words)
    assert code == 0, errors
    assert stored_texts(TokenStore(Path("made"))) == ROWS
    assert TokenStore(Path("made")).manifest["sources"] == [{"file": "-", "bytes": 0, "documents": len(ROWS)}]


def test_a_pipe_with_a_name_is_read_once_and_whole(unmask: Command, place: Path, tokenizer: Path) -> None:
    """`<(zcat a.jsonl.gz)`: what looked into it beforehand would lose what it read."""
    os.mkfifo("pipe")
    sender = threading.Thread(target=lambda: Path("pipe").write_bytes(LINES.encode()), daemon=True)
    sender.start()
    words = ["--tokenizer", tokenizer, "--out", "made", "--workers", 1, "--format", "jsonl", "--column", "body"]
    code, _, errors = unmask("prepare", "pipe", *words)
    assert code == 0, errors
    assert stored_texts(TokenStore(Path("made"))) == ROWS
    write_files({"m.yaml": "corpora: {en: {text: [pipe]}}"})
    refused = unmask("prepare", "m.yaml", "--tokenizer", tokenizer, "--out", "other", "--format", "jsonl")
    check_refused(refused, "m.yaml: a mixture is read twice, which pipe cannot be: name files")


def test_a_book_and_a_dump_as_they_are_published(unmask: Command, place: Path, tokenizer: Path) -> None:
    words = ["--tokenizer", tokenizer, "--workers", 1]
    book, wiki = FIXTURES / "pg99999.txt", FIXTURES / "wiki-pages-articles.xml"
    assert unmask("prepare", book, wiki, "--out", "made", *words).code == 0
    text = check_account(TokenStore(Path("made")))
    assert "Gutenberg licence lines" in text["removed"]
    assert {"redirect page", "not an article"} & text["dropped"].keys()
    assert text["files"] == 2
    assert text["documents"] >= 2
    assert unmask("prepare", book, "--out", "plain", *words, "--format", "txt").code == 0
    assert TokenStore(Path("plain")).num_documents > 1, "as plain text, its paragraphs are documents"


# ------------------------------------------------------------------------------------------------------ what is left

DIRTY = [
    "The dog barks\u200b at the fox, and the fox runs away from the dog.",
    "The dog barks at the fox, and the fox runs away from the dog.",  # equal once it is clean
    "Short.",
    " \n ",
    "A line that comes again in another document, word for word.\nAnd one of its own, which is nowhere else.",
    "A line that comes again in another document, word for word.\nAnd a second one of its own, seen only here.",
    "Cookies\nAccept all cookies\nA story follows here about a fox that came to town one day.",
    "\ub098\ub294 \ud559\uad50\uc5d0 \uac04\ub2e4. \ub108\ub294 \uc9d1\uc5d0 \uc788\ub2e4. \uc6b0\ub9ac\ub294 \uae38.",
]


def test_every_step_of_cleaning_is_in_the_account(unmask: Command, place: Path, tokenizer: Path) -> None:
    write_files({"a.jsonl": json_lines(*({"text": text} for text in DIRTY)) + "{\n"})
    words = ["--tokenizer", tokenizer, "--out", "made", "--workers", 1, "--on-error", "skip", "--min-characters", 10]
    words += ["--duplicates", "paragraphs", "--near-duplicates", 0.9, "--set", "cleaning.boilerplate_lines=true"]
    code, output, errors = unmask("prepare", "a.jsonl", *words, "--set", "cleaning.min_script_share.Latin=0.5")
    assert code == 0, errors
    store = TokenStore(Path("made"))
    text = check_account(store)
    counts = {reason: amount["count"] for reason, amount in text["dropped"].items()}
    assert counts == {"duplicate": 1, "empty": 1, "too little of Latin": 1, "too short": 1}
    assert text["removed"].keys() == {"boilerplate lines", "duplicate paragraphs", "zero-width characters"}
    assert text["skipped"] == {"not JSON": 1}
    assert (text["documents_read"], text["documents"], store.num_documents) == (8, 4, 4)
    assert store.manifest["cleaning"]["min_script_share"] == {"Latin": 0.5}
    for told in [*text["dropped"], *text["removed"], "passed over 1 record: not JSON"]:
        assert told in output


# ---------------------------------------------------------------------------------------------------------- mixtures


def test_documents_of_a_mixture_are_taken_as_often_as_it_says(unmask: Command, place: Path, tokenizer: Path) -> None:
    """Sizes 1 : 9; with exponent 0.5 the shares are 1/4 and 3/4, so 2.5 times and 5/6 of each document."""
    numbers = {"small": range(100), "large": range(1000, 1900)}
    for name, some in numbers.items():
        write_files({f"{name}.jsonl": json_lines(*({"text": f"the dog {n:04d} barks"} for n in some))})
    write_files({"m.yaml": "exponent: 0.5\ncorpora:\n  small: {text: [small.jsonl]}\n  large: {text: [large.jsonl]}\n"})
    code, output, errors = unmask("prepare", "m.yaml", "--tokenizer", tokenizer, "--out", "made", "--workers", 1)
    assert code == 0, errors
    store = TokenStore(Path("made"))
    times = {name: pytest.approx(value) for name, value in store.manifest["mixture"].items()}
    assert times == {"small": 2.5, "large": 5 / 6}
    stored = Counter(store.text_hashes().tolist())
    taken = {name: [stored[held_out_hash(f"the dog {n:04d} barks")] for n in some] for name, some in numbers.items()}
    assert set(taken["small"]) == {2, 3}
    assert set(taken["large"]) == {0, 1}
    # 100 draws at 1/2 and 900 at 5/6: standard deviations of 5 and 11.2 documents, of which four are allowed.
    assert sum(taken["small"]) == pytest.approx(250, abs=20)
    assert sum(taken["large"]) == pytest.approx(750, abs=45)
    assert sum(stored.values()) == sum(taken["small"]) + sum(taken["large"]) == store.num_documents
    assert check_account(store)["documents"] == 1000, "in the account a document counts once"
    assert "went out" in output


# ----------------------------------------------------------------------------------------------- a store that is there

OTHERS: dict[str, tuple[list[str], str]] = {
    "cleaning": (["--min-characters", "5"], "cleaning.min_characters"),
    "two of cleaning": (["--duplicates", "documents", "--set", "cleaning.nfc=false"], "cleaning.nfc and cleaning.dupl"),
    "reading": (["--set", "reading.txt_documents=file"], "reading.txt_documents"),
    "the splitter": (["--sentences", "kiwi"], "--sentences"),
}


@pytest.mark.parametrize(("options", "different"), OTHERS.values(), ids=OTHERS.keys())
def test_a_complete_store_is_not_taken_for_one_of_other_settings(
    unmask: Command, place: Path, tokenizer: Path, options: list[str], different: str
) -> None:
    write_files({"a.txt": GOOD})
    words = ["prepare", "a.txt", "--tokenizer", tokenizer, "--out", "made", "--workers", 1, "--resume"]
    assert unmask(*words).code == 0
    before = tree_of(place)
    assert unmask(*words).code == 0, "the same command again"
    check_refused(unmask(*words, *options), f"made: what is there was made from another {different}")
    assert tree_of(place) == before


MIXTURE = "corpora: {a: {text: [a.txt]}, b: {text: [b.txt]}}"


def test_a_mixture_of_other_shares_or_another_seed_is_another_store(
    unmask: Command, place: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is seen without reading the text again."""
    write_files({"a.txt": GOOD, "b.txt": GOOD * 2, "m.yaml": MIXTURE})
    words = ["--tokenizer", tokenizer, "--out", "made", "--workers", 1, "--resume"]
    assert unmask("prepare", "m.yaml", *words).code == 0
    assert unmask("prepare", "a.txt", "b.txt", *words[:3], "plain", *words[4:]).code == 0
    told = "plain: what is there was made from another mixture: start again"
    check_refused(unmask("prepare", "m.yaml", *words[:3], "plain", *words[4:]), told)
    monkeypatch.setattr("unmask.corpus.pipeline.read_files", lambda *_: pytest.fail("was read"))
    assert unmask("prepare", "m.yaml", *words).code == 0
    before = tree_of(place)
    check_refused(unmask("prepare", "a.txt", "b.txt", *words), "made: what is there was made from another mixture")
    write_files({"m.yaml": f"seed: 1\n{MIXTURE}"})
    check_refused(unmask("prepare", "m.yaml", *words), "made: what is there was made from another mixture_seed")
    write_files({"m.yaml": f"exponent: 0.5\n{MIXTURE}"})
    told = "made: what is there was made from another mixture.a and mixture.b"
    check_refused(unmask("prepare", "m.yaml", *words), told)
    assert {**tree_of(place), "m.yaml": None} == {**before, "m.yaml": None}


@pytest.mark.parametrize(
    ("name", "told"),
    [("mixture_seed", "mixture_seed"), ("sentences_by", "--sentences"), ("cleaning.nfc", "cleaning.nfc")],
)
def test_a_store_that_does_not_say_a_setting_is_refused(
    unmask: Command, place: Path, tokenizer: Path, name: str, told: str
) -> None:
    write_files({"a.txt": GOOD, "b.txt": GOOD * 2, "m.yaml": MIXTURE})
    words = ["prepare", "m.yaml", "--tokenizer", tokenizer, "--out", "made", "--workers", 1, "--resume"]
    assert unmask(*words).code == 0
    path = place / "made" / "manifest.json"
    manifest = json.loads(path.read_text())
    group, _, key = name.rpartition(".")
    del (manifest[group] if group else manifest)[key]
    path.write_text(json.dumps({**manifest, "sha256": manifest_checksum(manifest)}))
    check_refused(unmask(*words), f"made: what is there was made from another {told}: start again")


def test_mistakes_are_told_before_a_mixture_is_read(
    unmask: Command, place: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files({"a.txt": GOOD, "b.txt": GOOD * 2, "m.yaml": MIXTURE, "held/note.txt": ""})
    monkeypatch.setattr("unmask.corpus.pipeline.read_files", lambda *_: pytest.fail("was read"))
    words = ["prepare", "m.yaml", "--out", "made", "--workers", 1, "--tokenizer"]
    check_refused(unmask(*words, "nowhere"), "nowhere does not exist")
    check_refused(unmask(*words, tokenizer, "--sentences", "words"), "sentences by 'words'")
    check_refused(unmask("tokenizer", "train", "m.yaml", "--out", "held"), "held")


def test_a_flipped_byte_in_the_list_of_what_was_passed_over_is_found(
    unmask: Command, place: Path, tokenizer: Path
) -> None:
    write_files({"a.jsonl": LINES + '{"text": "Fine."}\n'})
    words = ["prepare", "a.jsonl", "--tokenizer", tokenizer, "--out", "made", "--workers", 1, "--on-error", "skip"]
    assert unmask(*words).code == 0
    assert unmask("verify", "made").code == 0
    write_files({"made/skipped.jsonl": Path("made/skipped.jsonl").read_text().replace("a.jsonl:1", "a.jsonl:3")})
    check_refused(unmask("verify", "made"), "made/skipped.jsonl: its checksum is not the manifest's")


# --------------------------------------------------------------------------------------------- words that mean nothing

MIXTURES: dict[str, tuple[Files, list[str], str]] = {
    "an unknown key": (
        {"m.yaml": "corpora: {en: {text: [a.txt], wieght: 2}}"},
        ["m.yaml"],
        "m.yaml: unknown key corpora.en.wieght; did you mean",
    ),
    "a missing file": ({"m.yaml": "corpora: {en: {text: [b.txt]}}"}, ["m.yaml"], "b.txt: no such file or folder"),
    "a missing mixture": ({}, ["m.yaml"], "m.yaml: cannot be read (No such file or directory)"),
    "among other paths": (
        {"m.yaml": "corpora: {en: {text: [a.txt]}}"},
        ["m.yaml", "a.txt"],
        "m.yaml, a.txt: expected either one mixture (a YAML file) or corpus files",
    ),
    "standard input": (
        {"m.yaml": "corpora: {en: {text: ['-']}}"},
        ["m.yaml"],
        "m.yaml: a mixture is read twice, which standard input (-) cannot be: name files",
    ),
    "standard input in another folder": (
        {"in/m.yaml": "corpora: {en: {text: ['-']}}"},
        ["in/m.yaml"],
        "in/m.yaml: a mixture is read twice, which standard input (-) cannot be: name files",
    ),
    "an empty name": ({"in/m.yaml": "corpora: {en: {text: ['']}}"}, ["in/m.yaml"], "an empty name among the corpus"),
    "a size that no disk has": ({"m.yaml": "size: 1e15\ncorpora: {en: {text: [a.txt]}}"}, ["m.yaml"], "about "),
    "bad text in it": (
        {"m.yaml": "corpora: {en: {text: [a.txt, b.jsonl]}}", "b.jsonl": "{\n"},
        ["m.yaml"],
        "b.jsonl:1: not JSON",
    ),
}


@pytest.mark.parametrize(("files", "text", "message"), MIXTURES.values(), ids=MIXTURES)
def test_mistakes_in_a_mixture_are_told(
    unmask: Command, place: Path, tokenizer: Path, files: Files, text: list[str], message: str
) -> None:
    write_files({"a.txt": GOOD, **files})
    before = tree_of(place)
    check_refused(unmask("prepare", *text, "--tokenizer", tokenizer, "--out", "made", "--workers", 1), message)
    assert tree_of(place) == before


def test_how_tables_are_written_is_an_option(unmask: Command, place: Path, tokenizer: Path) -> None:
    write_files({"a.csv": '1,"good\n2,words"\n'})
    table = ("--header", "none", "--not-quoted", "--column", "2")
    made = unmask("prepare", "a.csv", "--tokenizer", tokenizer, "--out", "made", "--workers", 1, *table)
    assert made.code == 0, made.errors
    assert TokenStore("made").num_documents == 2
    report = unmask("tokenizer", "report", tokenizer, "--text", "a.csv", *table, "--out", "r.html")
    assert (report.code, report.errors) == (0, "wrote r.html\n")
    assert unmask("doctor", "made", "--out", "d.html").errors.endswith("wrote d.html\n")


def test_settings_are_given_as_dictionaries(place: Path, tokenizer: Path) -> None:
    write_files({"a.jsonl": '{"body": "some good words"}\n{"body": "a"}\n'})
    options: dict[str, Any] = {"reading": {"column": "body"}, "cleaning": {"min_characters": 2}}
    assert prepare("a.jsonl", tokenizer, "made", **options).num_documents == 1
    assert train_tokenizer("a.jsonl", "t", {"vocab_size": 60}, **options)[1].vocab_size <= 60
    with pytest.raises(SettingsError, match=r"^reading: unknown key colum; did you mean column\?"):
        prepare("a.jsonl", tokenizer, "other", reading={"colum": "body"})
    for option in ("workers", "shard_bytes"):
        with pytest.raises(SettingsError, match=f"^{option}=0: expected at least 1"):
            prepare("a.jsonl", tokenizer, "other", **{option: 0})


OPTIONS: dict[str, str] = {
    "--sentences nope": "sentences by 'nope': expected rules or kiwi",
    "--format nope": "options: reading.format=nope: expected auto, txt, md, jsonl, csv, tsv, parquet, wikipedia or gut",
    "--duplicates nope": "options: cleaning.duplicates=nope: expected keep, documents or paragraphs",
    "--on-error ignore": "options: reading.on_error=ignore: expected stop or skip",
    "--near-duplicates 1": "options: cleaning.near_duplicates=1.0: expected less than 1",
    "--near-duplicates 0": "options: cleaning.near_duplicates=0.0: expected more than 0",
    "--min-characters 0": "options: cleaning.min_characters=0: expected at least 1",
    "--set nonsense": "'nonsense': expected key=value",
    "--set cleaning.nope=1": "options: unknown key cleaning.nope; expected one of cleaning.boilerplate_lines",
    "--set tokenizer.vocab_size=9": "options: unknown key tokenizer",
    "--set cleaning.min_script_share.Klingon=0.5": "min_script_share: there is no script 'Klingon': expected Unicode",
    "--column body": "a.txt: no columns, so --column body (in a recipe reading.column=body) means nothing: if this",
    "--ray nowhere:1": "--ray nowhere:1: no Ray cluster answers there (",
}


@pytest.mark.parametrize(("options", "message"), OPTIONS.items())
def test_wrong_options_are_told(unmask: Command, place: Path, tokenizer: Path, options: str, message: str) -> None:
    write_files({"a.txt": GOOD})
    before = tree_of(place)
    finished = unmask("prepare", "a.txt", "--tokenizer", tokenizer, "--out", "made", "--workers", 1, *options.split())
    if options.startswith("--ray"):  # what the store will need was told before the cluster was looked for
        finished = finished._replace(errors=finished.errors.partition("are free\n")[2])
    check_refused(finished, message)
    assert tree_of(place) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--kind nope", "tokenizer train: tokenizer.kind=nope: expected wordpiece, bpe, byte_bpe or word"),
        ("--preset nope", "--preset nope: there is no such preset; expected one of bert, bert-cased, roberta, gpt1"),
        ("--segmenter nope", "tokenizer train: tokenizer.segmenter=nope: expected none or kiwi"),
        ("--set tokenizer.nope=1", "tokenizer train: unknown key tokenizer.nope; expected one of tokenizer.alphabet_s"),
        ("--vocab-size 3", "tokenizer train: tokenizer.vocab_size=3: expected at least 8"),
        ("--kind byte_bpe --vocab-size 99", "a vocabulary of 99 entries has no room for the 256 entries of an alphab"),
    ],
)
def test_wrong_options_of_a_tokenizer_are_told(unmask: Command, place: Path, options: str, message: str) -> None:
    write_files({"a.txt": GOOD})
    check_refused(unmask("tokenizer", "train", "a.txt", "--out", "made", *options.split()), message)
    assert tree_of(place).keys() == {"a.txt"}
