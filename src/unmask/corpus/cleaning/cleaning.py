"""Cleaning one document: each step is a small function, and `clean` puts them in order.

Cleaning keeps what may carry meaning and removes what cannot be seen. Departures from BERT's own `clean_text`, which
drops every control and format character: form feeds and other line breaks become newlines (dropping them would glue
words together); the joiners U+200C and U+200D stay where a script or an emoji sequence uses them (Persian, Indic
scripts); private-use and unassigned characters stay, since the tokenizer decides about them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set

from unmask.corpus.annotations import Edit
from unmask.corpus.cleaning.boilerplate import is_boilerplate
from unmask.corpus.cleaning.draft import NOTHING_LEFT, Draft
from unmask.corpus.cleaning.scripts import is_mark, letters_by_script, script_names
from unmask.corpus.settings import CleaningSettings
from unmask.errors import SettingsError
from unmask.io.encodings import normalized

# Characters that no character step affects: none is removed, and none composes with a neighbour or is changed by NFC.
# Nearly all text consists of them alone, which one fast scan detects. They cover the scripts that write words without
# combining marks: Latin, Greek, Cyrillic, Armenian, Georgian, Han, kana, Hangul; and the letters of Hebrew and Arabic.
_PLAIN = (
    "\t\n -~\u00a0-\u00ac\u00ae-\u02ff"
    "\u0370-\u0373\u0375-\u037d\u037f-\u0386\u0388-\u0482\u048a-\u052f\u0531-\u0586"
    "\u05d0-\u05ea\u0621-\u064a\u0660-\u066f\u0671-\u06d3\u06f0-\u06f9\u10a0-\u10ff\u1e00-\u1f70"
    "\u2002-\u200a\u2010-\u2027\u202f-\u205f\u2070-\u20cf\u2100-\u2125\u2127-\u2129\u212c-\u2328\u232b-\u2adb"
    "\u3000-\u3029\u3030-\u3096\u309b-\u30ff\u3131-\u318e\u3200-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\ufe0f\uff01-\uffee"
    "\U0001f300-\U0001faff"
)
_RUNS_NOT_PLAIN = re.compile(f"[{_PLAIN}]*+([^{_PLAIN}]*+)")

_LINE_BREAKS = frozenset("\r\x0b\x0c\x85\u2028\u2029")
_CONTROL = frozenset(map(chr, [*range(0x20), *range(0x7F, 0xA0)])) - _LINE_BREAKS - {"\t", "\n"}
_ZERO_WIDTH = frozenset(
    "\u00ad"  # soft hyphen
    "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e"  # direction marks and overrides
    "\u180e"  # Mongolian vowel separator
    "\u200b\ufeff"  # zero-width space, byte order mark
    "\u2060\u2061\u2062\u2063\u2064\u2065\u2066\u2067\u2068\u2069"  # word joiner, invisible operators, isolates
    "\u206a\u206b\u206c\u206d\u206e\u206f"  # deprecated format characters
    "\ufff9\ufffa\ufffb"  # interlinear annotations
)
# A joiner that does not follow anything it can join: at the beginning, or after Latin, Greek, Cyrillic, punctuation,
# Han, kana or Hangul. Each joiner has its own expression, since one that begins with a literal character is fast.
_CAN_BE_JOINED = "[^\u0000-\u058f\u1100-\u11ff\u2000-\u206f\u3000-\u9fff\uac00-\ud7ff\ufeff\ufff9-\ufffb]"
_NEEDLESS_JOINERS = {joiner: re.compile(f"{joiner}(?<!{_CAN_BE_JOINED}{joiner})") for joiner in ("\u200c", "\u200d")}
_NEVER_COMPOSED = _LINE_BREAKS | _CONTROL | _ZERO_WIDTH | set(_NEEDLESS_JOINERS)

COMPOSED = "documents composed (NFC)"


def clean(draft: Draft, settings: CleaningSettings) -> None:
    """Applies to a document the steps that depend on no other document.

    Characters come first, since the other steps look at visible text; then lines; then the document as a whole.
    """
    unusual = unusual_characters(draft.text)
    if unusual:
        may_compose = settings.nfc and not unusual <= _NEVER_COMPOSED
        if may_compose and not unusual.isdisjoint(_NEEDLESS_JOINERS):
            compose(draft)  # before the rest, since whether a joiner stays depends on the character before it
        if settings.control_characters:
            unify_line_breaks(draft, unusual)
            remove_control_characters(draft, unusual)
        if settings.zero_width_characters:
            remove_zero_width_characters(draft, unusual)
        if may_compose:
            compose(draft)  # after the rest, since characters that were separated may be neighbours now
    if not draft.text or draft.text.isspace():
        draft.drop("empty")
        return
    if settings.boilerplate_lines:
        remove_boilerplate_lines(draft)
    drop_short(draft, settings.min_characters)
    if draft.dropped is None and settings.min_script_share:
        drop_other_scripts(draft, settings.min_script_share)


def check_scripts(settings: CleaningSettings) -> None:
    """Raises SettingsError if `min_script_share` has a script that does not exist, or an invalid share."""
    if not settings.min_script_share:
        return
    names = script_names()
    for script, share in settings.min_script_share.items():
        if script not in names:
            expected = "expected Unicode's name, such as Latin, Hangul, Han"
            raise SettingsError(f"min_script_share: there is no script {script!r}: {expected}")
        if not 0 <= share <= 1:
            raise SettingsError(f"min_script_share: {script}: {share} is no share: expected a number from 0 to 1")


def unusual_characters(text: str) -> set[str]:
    """The characters of a text that some character step may affect; usually none."""
    return set("".join(_RUNS_NOT_PLAIN.findall(text)))


def compose(draft: Draft) -> None:
    """Puts the text into Unicode's composed normal form (NFC)."""
    composed = normalized("NFC", draft.text)
    if composed != draft.text:
        is_first = all(what != COMPOSED for what, _, _ in draft.removed)
        draft.change(composed, COMPOSED, int(is_first), _composing(draft.text))


def _composing(text: str) -> Iterator[Edit]:
    """The characters that NFC changes, each with the marks after it: only marks compose with a preceding character."""
    start = 0
    for end in range(1, len(text) + 1):
        if end == len(text) or not is_mark(text[end]):
            cluster = text[start:end]
            composed = normalized("NFC", cluster)
            if composed != cluster:
                yield Edit(start, end, len(composed))
            start = end


def unify_line_breaks(draft: Draft, unusual: Set[str]) -> None:
    """Makes every line break, vertical tab and form feed a newline."""
    breaks = sorted(unusual & _LINE_BREAKS)
    if not breaks:
        return
    text = draft.text.replace("\r\n", "\n")
    num_breaks = len(draft.text) - len(text)
    for character in breaks:
        num_breaks += text.count(character)
        text = text.replace(character, "\n")
    edits = (Edit(match.start(), match.end(), 1) for match in re.finditer("\r\n", draft.text))
    draft.change(text, "line breaks made newlines", num_breaks, edits)


def remove_control_characters(draft: Draft, unusual: Set[str]) -> None:
    """Removes the characters of category Cc except tabs and line breaks."""
    _remove(draft, unusual & _CONTROL, "control characters")


def remove_zero_width_characters(draft: Draft, unusual: Set[str]) -> None:
    """Removes characters that have no width and no meaning at their place."""
    _remove(draft, unusual & _ZERO_WIDTH, "zero-width characters")
    for joiner, needless in _NEEDLESS_JOINERS.items():
        if joiner in unusual:
            text, count = needless.subn("", draft.text)
            if count:
                draft.change(text, "zero-width characters", count, _removals(needless, draft.text))


def _remove(draft: Draft, characters: Set[str], what: str) -> None:
    text = draft.text
    for character in characters:  # one fast search each, faster than a character class in an expression
        text = text.replace(character, "")
    count = len(draft.text) - len(text)
    if count:
        found_anywhere = re.compile("|".join(map(re.escape, characters)))
        draft.change(text, what, count, _removals(found_anywhere, draft.text))


def _removals(removed: re.Pattern[str], text: str) -> Iterator[Edit]:
    return (Edit(match.start(), match.end(), 0) for match in removed.finditer(text))


def remove_boilerplate_lines(draft: Draft) -> None:
    """Removes boilerplate lines, and documents that consist of nothing else."""
    lines = draft.text.split("\n")
    keep = [not is_boilerplate(line) for line in lines]
    if not all(keep):
        draft.keep_lines(lines, keep, "boilerplate lines")


def drop_short(draft: Draft, min_characters: int) -> None:
    """Drops a document of fewer characters, not counting white space at its ends; without any, as "nothing left"."""
    if min_characters == 1 and not draft.removed:
        return
    num_characters = len(draft.text.strip())
    if num_characters == 0:
        draft.drop(NOTHING_LEFT)
    elif num_characters < min_characters:
        draft.drop("too short")


def drop_other_scripts(draft: Draft, min_share: Mapping[str, float]) -> None:
    """Drops a document whose share of letters is too small in each of the given scripts, or that has no letters."""
    letters = letters_by_script(draft.text)
    num_letters = letters.total()
    if not any(num_letters and letters[script] >= share * num_letters for script, share in min_share.items()):
        draft.drop(f"too little of {' or '.join(min_share)}")
