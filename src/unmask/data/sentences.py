"""Splitting documents into sentences by built-in rules for English and Korean, with character offsets.

One compiled pattern finds the few places where a sentence can end and only those are looked at closer, so the cost is a
few Python operations a sentence, and linear in the text whatever it holds. A line break always ends a sentence, because
corpora come one paragraph a line: text wrapped at a fixed width should be unwrapped first. No sentence is too long: a
line without a stop is one sentence of any length.

The rules come from reading English and Korean Wikipedia and English novels. Sentences within an English quotation are
sentences of their own, as in the Penn Treebank; a Korean quotation that its sentence goes on from
(`"나는 간다. 너는 와라."라고 말했다.`) stays whole, and so does text with a bracketed remark in its midst.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from enum import Enum, auto

_STOPS = ".!?…。！？｡．"  # stops

# -------------------------------------------------------------------------------------------- words before a full stop


class Abbreviation(Enum):
    """What a full stop after a shortened word can mean."""

    NEVER_LAST = auto()  # something must follow: a title, "e.g."
    BEFORE_NUMBER = auto()  # shortened only before a number: "No. 5", but "No. He did not."
    SELDOM_LAST = auto()  # ends a sentence only if the next word is one that opens sentences
    OFTEN_LAST = auto()  # ends a sentence unless the next word belongs to it: "5 p.m. Eastern time"


_ABBREVIATIONS: dict[Abbreviation, str] = {
    Abbreviation.NEVER_LAST: """
        Mr Mrs Ms Mx Dr Drs Messrs Mme Mlle Mmes Prof Profs Rev Revd Hon Rt Msgr Mgr Gen Col Capt Cpt Lt Maj Sgt Cpl Pvt
        Pte Adm Brig Cdr Cmdr Comdr Ens Gov Sen Sens Rep Reps Pres Supt Insp Amb Atty Wm Geo Chas Thos Jas Robt Benj
        Edw Jno Saml mr mrs ms dr prof vs v cf viz e.g i.e eg ie E.g I.e Cf approx ca esp incl feat Feat
    """,
    Abbreviation.BEFORE_NUMBER: """
        No Nos no nos Nr nr Vol Vols vol vols Fig Figs fig figs p pp Pp pg Ch ch Chap Chaps chap chaps Sec Sect sec
        sect Art Arts art arts Op op Eq Eqs eq eqs Ex ex Para para Par par Pl pl Bk bk Ver ver vv Ref ref refs Tab tab
        Ser ser Bd Cap cap Lib lib Cl cl Div Rte circa App app Deut Exod Lev Num Matt Josh Judg Sam Chron Neh Prov Isa
        Jer Ezek Zech Rom Gal Eph Phil Thess Tim Heb Pet Pop
    """,
    Abbreviation.SELDOM_LAST: """
        St Ste Mt Ft ft Fr Sr Jr Snr Jnr Esq Bro Bros Inc Ltd Co Corp Cie Mfg Assn Assoc Dept Univ Inst Govt Bldg Ave
        Blvd Rd Pt pt Hwy Sq Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec Tue Tues Thu Thur Thurs Fri Ph Ala Ariz
        Ark Calif Colo Conn Del Fla Ill Kan Ky Mich Minn Mont Neb Nev Okla Ont Penn Penna Que Tenn Tex Va Wis Wyo Eng
        Ger Gk Gr al ed eds Ed Eds trans repr est Est fl var subsp ssp sp spp cv abbr pron st co inc ltd jr sr
    """,
    Abbreviation.OFTEN_LAST: "etc Etc &c a.m p.m A.M P.M pm B.C A.D B.C.E C.E",
}
_ABBREVIATION_OF = {word: kind for kind, words in _ABBREVIATIONS.items() for word in words.split()}
_ACRONYM = re.compile(r"(?:[A-Za-z]{1,2}\.)+[A-Za-z]{1,3}")  # U.S  Ph.D  J.R.R
_DESIGNATED = re.compile(  # what a single letter can follow as a name of its own: "vitamin C."
    "vitamin|type|class|group|grade|plan|point|team|series|section|part|appendix|hepatitis|schedule|level|category"
)
_ENUMERATOR = re.compile(r"\d{1,3}(?:\.\d{1,3})*|[A-Za-z]|[IVXLC]{1,6}|[ivx]{1,4}|[가-힣①-⑳]")  # of a list: "1. 항목"

# ------------------------------------------------------------------------------------------------- what may come next

_OPENING_WORD = re.compile(
    "(?:The|This|That|These|Those|There|Then|Thus|They|Their|He|She|It|Its|His|Her|We|Our|You|Your|My|In|On|At|By|For|"
    "From|With|After|Before|During|While|When|Where|Although|Though|However|But|And|Or|So|If|As|Since|Until|Because|"
    "Some|Many|Most|All|Both|Each|Every|Several|Other|Another|An|No|Not|One|Once|Also|Among|Despite|Under|Over|Through|"
    "Throughout|To|Such|What|Who|Why|How|Here|Now|Later|Meanwhile|Moreover|Furthermore|Nevertheless|Instead|It's|"
    r"According|Today|Following|Upon|Unlike|Like|Only|Even|Yet|Nor|Between|Within|Without|A(?= [a-z])|I(?= [a-z]))"
    "(?=[ ,'’])"
)
_TIME_ZONE_OR_DAY = re.compile(
    "(?:Eastern|Central|Mountain|Pacific|Atlantic|Local|[A-Z]{2,4}T|UTC|GMT|(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day)"
)
_NUMBER = re.compile(r"[#(]?\d|(?!I\b)[IVXLC]+\b(?!['’])")
_DAY_OF_DATE = re.compile(r"\d{1,2}\.(?!\d)")  # Korean dates: "2019. 3. 15."
_OPENERS = re.compile("[\"'“‘„«‹(\\[{「『《〈<*_¿¡–—-]++ ?")
_GOES_ON = frozenset(",;:)]}%&=+./!?…~»”")
_SPEECH_TAG = re.compile(  # after "Stop!" and the like
    r"(?:I|(?:(?:Mr|Mrs|Ms|Dr)\. )?[A-Z]\w++(?: [A-Z]\w++)?) (?:said|asked|cried|replied|exclaimed|answered|shouted|"
    r"called|demanded|inquired|enquired|whispered|murmured|muttered|screamed|yelled|repeated|returned|continued|added|thought)\b"
)
_LAST_PART = re.compile(r"[^\w.'’°/]")
_QUOTATIVE = re.compile(r"이?라[고는며던면]|이?란[ ]|하[고며는였자]|했|[고며는은를을와과의]\s|등[ 의을]")

# A bracketed remark in the midst of a sentence: not at the beginning of a line, nor after a stop and white space.
_BRACKETED = re.compile(rf"\((?<!^\()(?<![{_STOPS}]\s\()(?<![{_STOPS}][\"'”’)]\s\()[^()]*+(?:\([^()]*+\)[^()]*+)*+\)")
_QUOTED = re.compile(  # marks in pairs, and as group 1 the words that go on right after a Korean quotation
    r"""["“'‘「『〈《](?<![\w.!?]["'])(?=\S)(?:(?<=")[^"]*+(?<!\s)"|(?<=“)[^“”]*+”|(?<=')[^']*+(?<!\s)'|"""
    rf"(?<=‘)[^‘’]*+’|(?<=「)[^「」]*+」|(?<=『)[^『』]*+』|(?<=〈)[^〈〉]*+〉|(?<=《)[^《》]*+》)([가-힣]|\s(?:{_QUOTATIVE.pattern}))?"
)
_LONGEST_WHOLE = 500
"""Brackets or quotation marks further apart than this many characters are taken for strays."""

# --------------------------------------------------------------------------------------------------- where it can end

# What closes after stops: quotation marks and brackets, a remark in brackets, and what is left of references: "[3]" and
# Wikipedia's page numbers, ":45–47, 303".
_CLOSERS = (
    r"""(?:["'”’)\]}»›」』》〉]|\([^()]{1,100}+\)|\[\d{1,3}\]|"""
    r""":(?:pp?\. ?)?\d{1,4}(?:(?:[–-]|, ?)\d{1,4}){0,9}+(?=\s))*+"""
)
# A run of stops and what closes after it, then white space. East Asian stops, and a Korean ending right before the next
# Hangul word, need no white space. The look-behind makes a run match at its first stop or nowhere: linear time.
_STOP = re.compile(
    rf"[{_STOPS}](?<![{_STOPS}][{_STOPS}])[{_STOPS}]*+{_CLOSERS}"
    r"(\s++|(?<=[。！？｡])(?![」』”’）)])|(?<=[。！？｡][」』”’])(?![とっ、，,])|(?<=[가-힣][다요까죠]\.)(?=[가-힣]))"
)
_FINAL_SSANG_SIOT = "".join(chr(code) for code in range(0xAC00 + 20, 0xD7A4, 28))  # 했 었 겠 ...
_FINAL_PIEUP = "".join(chr(code) for code in range(0xAC00 + 17, 0xD7A4, 28))  # 합 입 습 ...
# Korean endings that need no stop to be seen: the formal ones anywhere, the others in lines without any full stop.
_FORMAL = rf"니(?<=[{_FINAL_PIEUP}]니)다[~^ㅋㅎㅠㅜ]*+(\s++)(?!이?라[고는며]|하[고는며]|[고만]\s)"
_INFORMAL = (
    rf"(?:니(?<=[{_FINAL_PIEUP}]니)[다까]|[세어아해에예네군까잖]요|[가-힣]죠|[{_FINAL_SSANG_SIOT}]다)"
    r"[~^ㅋㅎㅠㅜ]*+(\s++)(?!이?라[고는며]|하[고는며더여]|[고만]\s|보니|해도|왔|갔|없|안|못|싶|치[고면])"
    r"|[ㅋㅎㅠㅜ](?<![ㅋㅎㅠㅜ].)[ㅋㅎㅠㅜ]++(\s++)"
)
_STOP_OR_FORMAL = re.compile(f"{_STOP.pattern}|{_FORMAL}")
_STOP_OR_INFORMAL = re.compile(f"{_STOP.pattern}|{_INFORMAL}")


def split_sentences(text: str) -> list[tuple[int, int]]:
    """Splits a document into sentences.

    Args:
        text: one document; every line break ends a sentence.

    Returns:
        The half-open character offsets of the sentences, in order. They begin and end with characters that are not
        white space, do not overlap, and leave out white space only.
    """
    bounds = []
    offset = 0
    for line in text.splitlines(keepends=True):
        body = line.strip()
        if body:
            begin = offset + len(line) - len(line.lstrip())
            start = 0
            for end, next_start in _find_breaks(body):
                bounds.append((begin + start, begin + end))
                start = next_start
            bounds.append((begin + start, begin + len(body)))
        offset += len(line)
    return bounds


def _find_breaks(line: str) -> Iterator[tuple[int, int]]:
    """Where a sentence of a line ends and where the next one starts, for all but the last."""
    pattern = _STOP
    if not line.isascii():
        if "." not in line:
            pattern = _STOP_OR_INFORMAL
        elif "니다 " in line:
            pattern = _STOP_OR_FORMAL
    wholes = _find_wholes(line)
    whole_start, whole_end = next(wholes, _NO_WHOLE)
    start = 0
    for match in pattern.finditer(line):
        next_start = match.end()
        if next_start == len(line):
            return
        end = match.start(match.lastindex or 0)
        while whole_end <= end:
            whole_start, whole_end = next(wholes, _NO_WHOLE)
        if whole_start < end:
            continue
        by_stop = match.lastindex == 1 and end < next_start
        if by_stop and not _stop_ends_sentence(line, start, match.start(), end, next_start):
            continue
        yield end, next_start
        start = next_start


_NO_WHOLE = (sys.maxsize, sys.maxsize)


def _find_wholes(line: str) -> Iterator[tuple[int, int]]:
    """The stretches of a line that no break may fall into: bracketed remarks, and Korean quotations that go on."""
    wholes = [match.span() for match in _BRACKETED.finditer(line)] if "(" in line else []
    if not line.isascii():
        wholes += [match.span() for match in _QUOTED.finditer(line) if match[1]]
    last = 0
    for start, end in sorted(wholes):
        if end > last and end - start <= _LONGEST_WHOLE:
            yield start, end
            last = end


def _stop_ends_sentence(line: str, start: int, stop: int, end: int, next_start: int) -> bool:
    """Whether stops before white space end a sentence, to judge by the words around them.

    Args:
        line: a line without white space at its ends.
        start: where the sentence starts.
        stop: the first stop.
        end: behind the last stop and what closes after it.
        next_start: behind the white space.
    """
    following = line[next_start]
    if following in _GOES_ON:
        return False
    head = next_start
    if not following.isalnum() and (openers := _OPENERS.match(line, next_start)):
        head = openers.end()
        following = line[head : head + 1]
        if not following:
            return False
    quoted = line[end - 1] in "\"'”’」』"
    if following.islower() and line[stop - 1] < "가" and (quoted or not line[start].islower()):
        return False  # unless in Korean, or where this sentence too begins in lower case: then the whole text may be so
    if quoted and _QUOTATIVE.match(line, next_start):
        return False
    if line[end - 1] == ")" and following >= "가":  # a Korean remark that ends in a stop does not end its sentence
        opened = line.rfind("(", max(start, end - _LONGEST_WHOLE), end)
        if opened > start and line[opened - 1] not in _STOPS:
            return False
    if line[stop] == "." and (stop + 1 == end or line[stop + 1] not in _STOPS):
        return _full_stop_ends_sentence(line, start, stop, head)
    if line[stop] in ".…" and "?" not in (stops := line[stop:end]) and "!" not in stops:
        return _ellipsis_ends_sentence(line, stop, head)
    return not (quoted and _SPEECH_TAG.match(line, head))


def _full_stop_ends_sentence(line: str, start: int, stop: int, head: int) -> bool:
    """Whether a single full stop ends a sentence, to judge by the word before it and the word at `head`."""
    if stop - start < 9 and (stop == start or _ENUMERATOR.fullmatch(line, start, stop)):
        return False
    words = line[max(start, stop - 24) : stop].split()
    if line[stop - 1].isspace():
        return True
    word = words[-1].lstrip("\"'“‘([{«")
    kind = _ABBREVIATION_OF.get(word)
    if kind is None:
        if len(word) > 3 and word.isalpha():
            return True
        word = _LAST_PART.split(word)[-1]
        kind = _ABBREVIATION_OF.get(word)
    previous = words[-2] if len(words) > 1 else ""
    if kind is None:
        if word[-1:].isdigit():
            if len(word) < 3 and previous[-1:] in {",", ";", ":"}:  # a list within a sentence
                return False
            if line[head].isdigit():
                return not _DAY_OF_DATE.match(line, head)
            return not (line[head] >= "가" and previous[-1:] == "." and previous[:-1].isdigit())
        if len(word) == 1 and word.isascii():
            if _DESIGNATED.fullmatch(previous) or (word == "I" and previous.isalpha() and previous.istitle()):
                return True
        elif not _ACRONYM.fullmatch(word):
            return True
        kind = Abbreviation.SELDOM_LAST
    if kind is Abbreviation.NEVER_LAST:
        return False
    if kind is Abbreviation.BEFORE_NUMBER:
        return not _NUMBER.match(line, head)
    if kind is Abbreviation.OFTEN_LAST:
        return not _TIME_ZONE_OR_DAY.match(line, head)
    return _OPENING_WORD.match(line, head) is not None


def _ellipsis_ends_sentence(line: str, stop: int, head: int) -> bool:
    """Whether dots that trail off end a sentence: before a capital that is not "I", or after a Korean ending."""
    following = line[head]
    if following.isupper():
        broken_off = line.startswith(("...", "…"), stop) and not line.startswith(("....", "…."), stop)
        return not (broken_off and line.startswith(("I ", "I'", "I’"), head))
    return stop > 0 and line[stop - 1] in "다요까죠네지군라자"
