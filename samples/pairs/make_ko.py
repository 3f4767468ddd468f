"""Writes the Korean minimal pairs of `samples/pairs/ko` from the templates of `samples/pairs/ko_grammar`.

    python samples/pairs/make_ko.py            # the files and the table in their README
    python samples/pairs/make_ko.py --show 30  # pairs to read, drawn from each paradigm; nothing is written

Needs kiwipiepy (`pip install 'unmask[ko]'`). The same templates, seed and version of Kiwi give the same files.

A paradigm is a rule of grammar and at least five frames. A frame is a sentence in which `[right|wrong]` is the one
difference and `{slot}` a word of the lexicon: `{who}` one of a list, `{who2}` another of it; `{act.obj}` a field of one
entry, the same entry throughout the frame, `{act.obj2}` another word of that field. Frames take turns, so that each
gives the same share. How morphemes are joined stands in `korean_forms.py`.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from korean_forms import Joiner

HERE = Path(__file__).parent
GRAMMAR, OUT = HERE / "ko_grammar", HERE / "ko"
SEED = 31
PAIRS = 500
_TRIES = 200
"""Draws of a frame in a row that give nothing new before it counts as used up."""

_SLOT = re.compile(r"\{(\w+?)(\d?)(?:\.(\w+?)(\d?))?\}")
_CONTRAST = re.compile(r"\[([^|\]]*)\|([^\]]*)\]")
_TABLE = re.compile(r"(<!-- paradigms -->\n).*(<!-- end of paradigms -->)", re.DOTALL)

Lexicon = dict[str, list[Any]]


@dataclass(frozen=True)
class Paradigm:
    """A rule of grammar and the frames of its pairs, as the files of `ko_grammar` state it.

    Attributes:
        uid: its name.
        field: of grammar, as BLiMP names them: morphology, syntax, syntax_semantics, semantics.
        term: the phenomenon.
        rule: what the rule is, and why the other sentence is wrong.
        source: where the rule is described.
        checked: what the reading by hand found: right of 30 in the first draw, and right of 30 in the last.
        frames: sentences with slots and one contrast.
        lexicon: its words, and those that all paradigms share.
    """

    uid: str
    field: str
    term: str
    rule: str
    source: str
    checked: tuple[int, int]
    frames: tuple[str, ...]
    lexicon: Lexicon


def read_paradigms(folder: Path = GRAMMAR) -> list[Paradigm]:
    """Reads every paradigm, in the order of files and of their entries."""
    shared = yaml.safe_load((folder / "lexicon.yaml").read_text("utf-8"))
    paradigms = []
    for path in sorted(folder.glob("*.yaml")):
        if path.stem == "lexicon":
            continue
        content = yaml.safe_load(path.read_text("utf-8"))
        for uid, entry in content["paradigms"].items():
            lexicon = {**shared, **content.get("words", {}), **entry.get("words", {})}
            paradigms.append(
                Paradigm(
                    uid,
                    entry["field"],
                    entry["term"],
                    entry["rule"],
                    entry["source"],
                    tuple(entry["checked"]),
                    tuple(entry["frames"]),
                    {name: list(_members(name, lexicon)) for name in lexicon},
                )
            )
    return paradigms


def _members(name: str, lexicon: Lexicon) -> Iterator[Any]:
    for member in lexicon[name]:
        if isinstance(member, str) and member.startswith("@"):
            yield from _members(member[1:], lexicon)
        else:
            yield member


def make_pairs(paradigm: Paradigm, joiner: Joiner, count: int = PAIRS) -> list[tuple[str, str]]:
    """Makes pairs (right, wrong), all distinct, in an order that is drawn.

    Raises:
        ValueError: the frames do not give so many.
    """
    chance = random.Random(f"{SEED} {paradigm.uid}")
    pairs: dict[str, str] = {}
    wrong = set()
    open_frames = list(paradigm.frames)
    while len(pairs) < count:
        if not open_frames:
            raise ValueError(f"{paradigm.uid}: its frames give {len(pairs)} pairs, not {count}")
        for frame in list(open_frames):
            for _ in range(_TRIES):
                good, bad = (joiner.sentence(each) for each in _contrast(_fill(frame, paradigm.lexicon, chance)))
                if good == bad:
                    raise ValueError(f"{paradigm.uid}: both sentences are {good}")
                if good not in pairs and bad not in wrong and len(pairs) < count:
                    pairs[good] = bad
                    wrong.add(bad)
                    break
            else:
                open_frames.remove(frame)
    drawn = list(pairs.items())
    chance.shuffle(drawn)
    return drawn


def _fill(frame: str, lexicon: Lexicon, chance: random.Random) -> str:
    """Puts words into the slots; a slot inside a word of the lexicon is filled as well."""
    chosen: dict[str, Any] = {}
    words: dict[str, str] = {}

    def choose(key: str, members: list[Any], taken: list[Any]) -> Any:
        free = [member for member in members if member not in taken]
        if not free:
            raise ValueError(f"{{{key}}} in {frame!r}: no other word is left")
        return chance.choice(free)

    def word(slot: re.Match[str]) -> str:
        name, number, field, field_number = slot.groups()
        if name + number not in chosen:
            taken = [chosen[each] for each in chosen if each.rstrip("0123456789") == name]
            chosen[name + number] = choose(name, lexicon[name], taken)
        entry = chosen[name + number]
        if field is None:
            return str(entry)
        key = f"{name}{number}.{field}"
        if key + field_number not in words:
            taken = [words[each] for each in words if each.rstrip("0123456789") == key]
            value = entry[field]
            words[key + field_number] = choose(key, value, taken) if isinstance(value, list) else value
        return words[key + field_number]

    while _SLOT.search(frame):
        frame = _SLOT.sub(word, frame)
    return frame


def _contrast(frame: str) -> tuple[str, str]:
    return _CONTRAST.sub(r"\1", frame), _CONTRAST.sub(r"\2", frame)


def write(paradigms: list[Paradigm], joiner: Joiner, out: Path = OUT) -> None:
    """Writes a `.jsonl` for each paradigm, and the table of the README that stands there."""
    rows = []
    for paradigm in paradigms:
        pairs = make_pairs(paradigm, joiner)
        (out / f"{paradigm.uid}.jsonl").write_text("".join(_line(paradigm, *pair) for pair in pairs), "utf-8")
        rows.append(_table_row(paradigm, pairs))
    readme = out / "README.md"
    table = TABLE_HEAD + "".join(rows)
    readme.write_text(_TABLE.sub(lambda found: found[1] + table + found[2], readme.read_text("utf-8")), "utf-8")


def _line(paradigm: Paradigm, good: str, bad: str) -> str:
    row = {
        "sentence_good": good,
        "sentence_bad": bad,
        "field": paradigm.field,
        "linguistics_term": paradigm.term,
        "UID": paradigm.uid,
    }
    return json.dumps(row, ensure_ascii=False) + "\n"


TABLE_HEAD = (
    "| paradigm | rule, and why the other sentence is wrong | example | pairs "
    "| right sentence longer / as long / shorter | right of 30, first and last draw |\n|---|---|---|---|---|---|\n"
)


def _table_row(paradigm: Paradigm, pairs: list[tuple[str, str]]) -> str:
    good, bad = min(pairs, key=lambda pair: (len(pair[0]), pair[0]))
    first, last = paradigm.checked
    return (
        f"| `{paradigm.uid}` | {paradigm.rule} ({paradigm.source}) | {good} / \\*{bad} | {len(pairs)} | "
        f"{' / '.join(f'{share:.0%}' for share in length_shares(pairs))} | {first}, {last} |\n"
    )


def length_shares(pairs: list[tuple[str, str]]) -> tuple[float, float, float]:
    """In what share of pairs the right sentence has more, as many, and fewer characters than the wrong one."""
    differences = [len(good) - len(bad) for good, bad in pairs]
    return (
        sum(each > 0 for each in differences) / len(pairs),
        sum(each == 0 for each in differences) / len(pairs),
        sum(each < 0 for each in differences) / len(pairs),
    )


def main() -> None:
    """The program."""
    from kiwipiepy import Kiwi

    parser = argparse.ArgumentParser(description="Writes the Korean minimal pairs.")
    parser.add_argument("--show", type=int, metavar="N", help="print N pairs of each paradigm and write nothing")
    parser.add_argument("--from", type=int, default=0, dest="start", metavar="K", help="leave out K pairs of each")
    parser.add_argument("--only", nargs="*", metavar="UID", help="these paradigms")
    options = parser.parse_args()
    joiner = Joiner(Kiwi(num_workers=1))
    paradigms = [each for each in read_paradigms() if not options.only or each.uid in options.only]
    if options.show is None:
        write(paradigms, joiner)
        return
    for paradigm in paradigms:
        pairs = make_pairs(paradigm, joiner)
        print(f"## {paradigm.uid}: " + " / ".join(f"{share:.0%}" for share in length_shares(pairs)))
        for good, bad in pairs[options.start : options.start + options.show]:
            print(f"{good}\n  * {bad}")


if __name__ == "__main__":
    main()
