"""Splitting documents into sentences by built-in rules for English and Korean, with character offsets.

One compiled pattern finds the few places where a sentence can end, and identifies most of those where it certainly
does; only the others are examined further. So the cost is a few Python operations per sentence, and linear in the text
whatever it holds. A line break always ends a sentence, because corpora have one paragraph a line: text wrapped at a
fixed width should be unwrapped first. Length is not limited: a line without a stop is one sentence.

The rules come from reading English and Korean Wikipedia, English novels and Korean film reviews. Sentences within an
English quotation are separate sentences, as in the Penn Treebank; a Korean quotation after which the sentence continues
(`"나는 간다. 너는 와라."라고 말했다.`) stays whole, and so does a sentence with a bracketed remark inside it. A Korean
line written like chat, with dots for stops, faces and laughter, has its own rules.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from enum import Enum, auto
from itertools import product

_STOPS = ".!?…。！？｡．؟۔।॥։።။។"  # of Latin, East Asian, Arabic, Indian, Armenian, Ethiopic, Burmese and Khmer text

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
        Edw Jno Saml mr mrs ms dr prof vs v cf viz e.g i.e eg ie E.g I.e Cf approx ca esp incl
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
        Ger Gk Gr al ed eds Ed Eds trans repr est Est fl var subsp ssp sp spp cv abbr pron st co inc ltd jr sr feat Feat
    """,
    Abbreviation.OFTEN_LAST: "etc Etc &c a.m p.m A.M P.M pm B.C A.D B.C.E C.E",
}
_ABBREVIATION_OF = {word: kind for kind, words in _ABBREVIATIONS.items() for word in words.split()}
_NUMERALS = {
    "".join(letters) for length in (2, 3) for letters in product("ivx", repeat=length)
}  # as in a list: "viii."
_SHORTENED_TAILS = frozenset(f" {word}"[-3:] for word in _ABBREVIATION_OF.keys() | _NUMERALS)
"""Ends of words after which a full stop may be an abbreviation's: the last three letters, or a space and both."""

_ACRONYM = re.compile(r"(?:[A-Za-z]{1,2}\.)+[A-Za-z]{1,3}")  # U.S  Ph.D  J.R.R
_DESIGNATED = re.compile(  # words that a single letter can follow as a designation: "vitamin C."
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
_PARTICLE = re.compile(r"이?라|이?란|부터|까지|입니|인|이[었였면]|하[고며는]|했|[고며]|[은는을를이가도의에와과로]\s")
_CONNECTIVE = re.compile(  # endings of Korean words after which the sentence continues
    r"(?:(?<!최)고|[며면서데만은는을를이도의에와과로게던히려록든랑한된할될운런쁜픈]|으나|(?<!다)니|니까|까지|부터|처럼|보다|마다|"
    r"(?<![은는인던건한])가|정말|진짜|너무|완전|아주|역시)$"
)
_DAY_OF_DATE = re.compile(r"\d{1,2}\.(?!\d)")  # Korean dates: "2019. 3. 15."
_OPENERS = re.compile("[\"'“‘„«‹(\\[{「『《〈<*_¿¡–—-]++ ?")
_CONTINUES = frozenset(",;:)]}%&=+./!?…~»”^♡♥")
_LAUGHTER = re.compile("[ㅋㅎㅠㅜㅡ]++(?![가-힣])")
_SPEECH_TAG = re.compile(  # after "Stop!" and the like; "She cried" with a capital is a sentence of its own
    r"(?:I|(?:(?:Mr|Mrs|Ms|Dr)\.?\s)?(?!(?:He|She|It|We|You|They|Who)\b)[A-Z]\w++(?:\s[A-Z]\w++)?)\s(?:said|says|asked|asks|"
    r"cried|replied|exclaimed|answered|shouted|called|demanded|inquired|enquired|whispered|murmured|muttered|screamed|"
    r"yelled|repeated|returned|continued|added|thought|interrupted|queried|gasped|suggested|protested|echoed|"
    r"stammered|ejaculated|agreed|remarked|remonstrated|persisted|insisted|retorted|wondered|faltered|urged|"
    r"observed|commented|pursued|questioned|ventured|declared|shrieked|commanded|groaned|rejoined|resumed|hazarded|"
    r"sighed|sobbed|moaned|roared|growled|howled|hissed|snapped|pleaded|panted|interposed|(?:laughed|began)(?=[.,]))\b(?!:)"
)
_LAST_PART = re.compile(r"[^\w.'’°/]")
_QUOTATIVE = re.compile(r"이?라[고는며던면]|이?란[ ]|하[고며는였자]|했|[고며는은를을와과의]\s|등[ 의을]")

# A bracketed remark inside a sentence: not at the beginning of a line, nor after a stop and white space.
_BRACKETED = re.compile(rf"\((?<!^\()(?<![{_STOPS}]\s\()(?<![{_STOPS}][\"'”’)]\s\()[^()]*+(?:\([^()]*+\)[^()]*+)*+\)")
_QUOTED = re.compile(  # paired marks, and as group 1 the words that continue right after a Korean quotation
    r"""["“'‘「『〈《](?<![\w.!?]["'])(?=\S)(?:(?<=")[^"]*+(?<!\s)"|(?<=“)[^“”]*+”|(?<=')[^']*+(?<!\s)'|"""
    rf"(?<=‘)[^‘’]*+’|(?<=「)[^「」]*+」|(?<=『)[^『』]*+』|(?<=〈)[^〈〉]*+〉|(?<=《)[^《》]*+》)([가-힣]|\s(?:{_QUOTATIVE.pattern}))?"
)
_LONGEST_WHOLE = 500
"""Brackets or quotation marks further apart than this many characters are taken as unpaired."""

_NO_WHOLE = (sys.maxsize, sys.maxsize)

# --------------------------------------------------------------------------------------------------- where it can end

# What may close a sentence after its stops: quotation marks and brackets, a bracketed remark, and remains of
# references: "[3]" and Wikipedia's page numbers, ":45–47, 303".
_CLOSERS = (
    r"""(?:["'”’)\]}»›」』》〉]|\([^()]{1,100}+\)|\[\d{1,3}\]|"""
    r""":(?:pp?\. ?)?\d{1,4}(?:(?:[–-]|, ?)\d{1,4}){0,9}+(?=\s))*+"""
)
# One stop, perhaps a closing quotation mark, and one space: nearly all breaks. Unless an abbreviation precedes them
# (`_SHORTENED_TAILS`), they end a sentence by every rule, so no further check is needed.
_WORD_AND_STOP = r"(?<=[^.][A-Za-z ][A-Za-z][a-z]\.)"
_PLAIN = (
    rf"""(?:(?:{_WORD_AND_STOP}|(?<=[가-힣][가-힣]\.)|(?<=["”)\]]\.)|(?<=[!?])) (?=["'“‘]?[0-9A-Z가-힣])"""
    rf"""|(?:{_WORD_AND_STOP}["'”’]|(?<=[0-9]{{4}}\.)) (?=["'“‘]?[A-Z]))"""
)


def _stop_pattern(first: str, more: str = "", gap: str = r"\s++") -> str:
    """A run of stops and any closing marks, then a gap (group 1), or no gap where none is needed (group 2).

    East Asian stops, and a Korean ending right before the next Hangul word, need no gap. The look-behind makes a run
    match only at its first stop, which keeps the time linear.

    Args:
        more: what the run may contain besides stops.
        gap: what separates sentences.
    """
    return (
        rf"{first}(?<![{_STOPS}{more}][{_STOPS}{more}])(?:{_PLAIN}|[{_STOPS}{more}]*+{_CLOSERS}(?:({gap})|("
        r"(?<=[。！？｡])(?=[^」』”’）)])|(?<=[。！？｡][」』”’])(?=[^とっ、，,])|(?<=[가-힣][다요까죠음됨임듯네][.!?])(?=[가-힣]))))"
    )


_FINAL_SSANG_SIOT = "".join(chr(code) for code in range(0xAC00 + 20, 0xD7A4, 28))  # 했 었 겠 ...
_FINAL_PIEUP = "".join(chr(code) for code in range(0xAC00 + 17, 0xD7A4, 28))  # 합 입 습 ...
_FINAL_NIEUN = "".join(chr(code) for code in range(0xAC00 + 4, 0xD7A4, 28))  # 한 간 온 ...
_FACES = "~^;ㅋㅎㅠㅜㅡ♡♥"  # laughter, tears and faces, which belong to the sentence before them
_MORE = r"[-.…!?:;,()^♡♥]|[ㅋㅎㅠㅜㅡ](?![가-힣])"  # of the same sentence, after a white space
# Korean endings that are recognised without a stop: the formal ones anywhere, the others in chat.
_FORMAL = rf"니(?<=[{_FINAL_PIEUP}]니)다[{_FACES}]*+(\s++)(?!이?라[고는며]|하[고는며]|[고만]\s)"
_CHAT_ENDING = (
    rf"(?:니(?<=[{_FINAL_PIEUP}]니)[다까]|(?:[세어아해에예네군까잖워와져려돼봐줘써든]|[가-힣][가나])요|[가-힣]죠|[{_FINAL_SSANG_SIOT}]다)"
    rf"[{_FACES}]*+(\s++)(?!이?라[고는며]|하[고는며더여]|[고만]\s|보니|해도|왔|갔|없|안|못|싶|치[고면]|{_MORE})"
    # 이다, 한다, 없다 ...
    rf"|(?:[가-힣]이|[{_FINAL_NIEUN}없같좋많싶않])다[{_FACES}]*+(\s++)(?!이?라|하|할|해|한다|보니|못|는|고|며|면|등|{_MORE})"
    # 했음, 없음, 함, 됨, 임, but not 포함, 잠수함, 책임, 연임 ...
    rf"|(?:[{_FINAL_SSANG_SIOT}없같좋많싶않]음|[가-힣](?<![포명보수안군])함|[가-힣]됨|[가-힣](?<![책게모타레쓰라연위해사선재후주담전부취신퇴])임)"
    rf"[{_FACES}]*+(\s++)(?!좋|싶|하|안|못|된|됐|[이은을과에]|뿐|{_MORE})"
    # ^^, ㅡ.ㅡ, ㅋㅋ
    rf"|(?:\^[._]?\^|[ㅡ-][._][ㅡ-]|[ㅋㅎㅠㅜㅡ](?<![ㅋㅎㅠㅜㅡ].)[ㅋㅎㅠㅜㅡ])[.!{_FACES}]*+(\s++|(?=[0-9A-Z가-힣]))"
)
# Dots, commas in a row and "~" are stops in chat, and most need no gap after them.
_CHAT_STOP = _stop_pattern(
    rf"(?:[{_STOPS}]|~|,(?=,))",
    f",{_FACES}",
    rf"\s++|(?<=[.…,~][.…,~])(?=[0-9A-Z가-힣])|(?<=[!?…{_FACES[1:]}])(?=[0-9A-Z가-힣])",
)
_HANGUL = re.compile("[가-힣ㅋㅎㅠㅜ]")
_CHATTED = re.compile(
    r"[~^.,ㅋㅎㅠㅜㅡ](?:(?<=[가-힣]~)(?!\w)|(?<=\^)\^|(?<=\.)\.|(?<=,),|(?<=[ㅋㅎㅠㅜㅡ])[ㅋㅎㅠㅜㅡ])"
)
_STOP = re.compile(_stop_pattern(f"[{_STOPS}]"))
_FULL_STOP = re.compile(_stop_pattern(r"\."))  # a pattern that begins with one character is searched faster
_STOP_OR_FORMAL = re.compile(f"{_STOP.pattern}|{_FORMAL}")
_STOP_OR_CHAT = re.compile(f"{_CHAT_STOP}|{_CHAT_ENDING}")


def split_sentences(text: str) -> list[tuple[int, int]]:
    """Splits a document into sentences.

    Returns:
        The half-open character offsets of the sentences, in order. They begin and end with characters that are not
        white space, do not overlap, and leave out white space only.
    """
    bounds: list[tuple[int, int]] = []
    offset = 0
    for line in text.splitlines(keepends=True):
        body = line.strip()
        if body:
            _split_line(body, offset + len(line) - len(line.lstrip()), bounds)
        offset += len(line)
    return bounds


def begin_at_space(text: str, bounds: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The bounds of a document's sentences, each moved to begin with the last white space character before it, except
    the first sentence and those that follow without white space."""
    return [
        (start - 1, end) if number and text[start - 1].isspace() else (start, end)
        for number, (start, end) in enumerate(bounds)
    ]


def sentence_text(text: str, start: int, end: int) -> str:
    """The text between the bounds of a sentence; a white space character at its beginning becomes a space."""
    return f" {text[start + 1 : end]}" if text[start].isspace() else text[start:end]


def _split_line(line: str, offset: int, bounds: list[tuple[int, int]]) -> None:
    """Adds the bounds of a line's sentences, shifted by `offset`; the line has no white space at its ends."""
    is_ascii = line.isascii()
    in_korean = not is_ascii and _HANGUL.search(line) is not None
    if in_korean and ("." not in line or _CHATTED.search(line)):
        pattern = _STOP_OR_CHAT
    elif in_korean:
        pattern = _STOP_OR_FORMAL if "니다 " in line else _STOP
    else:
        pattern = _FULL_STOP if is_ascii and "?" not in line and "!" not in line else _STOP
    wholes = iter(_find_wholes(line, in_korean) if in_korean or "(" in line else ())
    whole_start, whole_end = next(wholes, _NO_WHOLE)
    start = 0
    for match in pattern.finditer(line):
        stop, next_start = match.span()
        group = match.lastindex  # None: `_PLAIN`; 1: other stops; above: certain ends of a sentence
        end = match.start(group) if group else next_start - 1
        if end > whole_start:
            while whole_end <= end:
                whole_start, whole_end = next(wholes, _NO_WHOLE)
            if end > whole_start:
                continue
        is_certain = group > 1 if group else line[stop - 3 : stop] not in _SHORTENED_TAILS
        if is_certain or _stop_ends_sentence(line, start, stop, end, next_start):
            bounds.append((offset + start, offset + end))
            start = next_start
    bounds.append((offset + start, offset + len(line)))


def _find_wholes(line: str, in_korean: bool) -> list[tuple[int, int]]:
    """The parts of a line that no break may fall into: bracketed remarks, and Korean quotations inside a sentence."""
    found = [match.span() for match in _QUOTED.finditer(line) if match[1]] if in_korean else []
    if "(" in line:
        found = sorted(found + [match.span() for match in _BRACKETED.finditer(line)])
    wholes = []
    last = 0
    for start, end in found:
        if end > last and end - start <= _LONGEST_WHOLE:
            wholes.append((start, end))
            last = end
    return wholes


def _stop_ends_sentence(line: str, start: int, stop: int, end: int, next_start: int) -> bool:
    """Whether stops end a sentence, judging by the words around them.

    Args:
        line: a line without white space at its ends.
        start: where the sentence starts.
        stop: the first stop.
        end: after the last stop and any closing marks.
        next_start: after the white space, if there is any.
    """
    following = line[next_start]
    if following in _CONTINUES or ("ㄱ" <= following <= "ㅣ" and _LAUGHTER.match(line, next_start)):
        return False
    head = next_start
    if not following.isalnum() and (openers := _OPENERS.match(line, next_start)):
        head = openers.end()
        following = line[head : head + 1]
        if not following:
            return False
    quoted = line[end - 1] in "\"'”’」』"
    if following.islower() and line[stop - 1] < "가" and (quoted or not line[start].islower()):
        return False  # except in Korean, or if this sentence also begins in lower case: then the whole text may
    if quoted and _QUOTATIVE.match(line, next_start):
        return False
    if end == next_start and _PARTICLE.match(line, next_start):
        return False
    if line[end - 1] == ")" and following >= "가":  # a Korean remark's final stop does not end the sentence around it
        opened = line.rfind("(", max(start, end - _LONGEST_WHOLE), end)
        if opened > start and line[opened - 1] not in _STOPS:
            return False
    if line[stop] == "." and (stop + 1 == end or line[stop + 1] not in _STOPS):
        return _full_stop_ends_sentence(line, start, stop, head)
    if line[stop] in ".…,~" and "?" not in (stops := line[stop:end]) and "!" not in stops:
        return _ellipsis_ends_sentence(line, start, stop, head)
    return not (quoted and _SPEECH_TAG.match(line, head))


def _full_stop_ends_sentence(line: str, start: int, stop: int, head: int) -> bool:
    """Whether a single full stop ends a sentence, judging by the word before it and the word at `head`."""
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


def _ellipsis_ends_sentence(line: str, start: int, stop: int, head: int) -> bool:
    """Whether an ellipsis ends a sentence: after a Korean ending, or before a capital.

    It does not if it opens the sentence ("... The rest") or marks a stammer ("I... I do").
    """
    if line[head].isupper():
        before = line[max(start, stop - 2) : stop].strip(" \"'“‘([")
        is_opening = before == "" and stop - start <= 2
        return not (is_opening or before == line[head] == "I")
    return _korean_dots_end_sentence(line, start, stop)


def _korean_dots_end_sentence(line: str, start: int, stop: int) -> bool:
    """Whether dots, commas in a row or "~" end a Korean sentence: not after an interjection or a connective ending."""
    before = line[max(start, stop - 24) : stop].rstrip("^;ㅋㅎㅠㅜㅡ ")
    word = before[before.rfind(" ") + 1 :]
    if not word or not "가" <= word[-1] <= "힣" or line[stop - 1 : stop + 1] == " ~":
        return False
    return len(before) > 3 and (len(word) > 1 or word in "듯뿐") and _CONNECTIVE.search(word) is None
