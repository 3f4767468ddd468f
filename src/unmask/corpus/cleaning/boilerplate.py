"""Boilerplate lines of web pages and scanned books: a short list of rules.

A rule has to match a line from end to end, and lines of more than `MAX_CHARACTERS` are never considered, so that a
sentence about cookies or copyright stays. Where a rule cannot distinguish a line from a sentence, the line stays.
"""

from __future__ import annotations

import re

MAX_CHARACTERS = 200

_SITE = r"(?:this|our|the) (?:web ?)?(?:site|page)"
_NETWORK = r"(?:facebook|twitter|x|linkedin|instagram|pinterest|reddit|whatsapp|telegram|tumblr|youtube|e-?mail)"
_KOREAN_NETWORK = r"(?:페이스북|트위터|카카오톡|카카오스토리|밴드|네이버|라인)"
_MENU_ITEM = (
    r"(?:home|about(?: us)?|contact(?: us)?|log ?in|log ?out|sign ?in|sign ?up|register|search|help|faqs?|site ?map|"
    r"privacy(?: policy)?|terms(?: (?:of (?:use|service)|(?:and|&) conditions))?|cookies?(?: policy)?|newsletter|news|"
    r"careers|jobs|advertise|subscribe|rss|blog|shop|my account|accessibility|"
    r"홈|메인|로그인|로그아웃|회원가입|마이페이지|고객센터|사이트맵|이용약관|개인정보\s?(?:처리|취급)\s?방침|"
    r"이메일\s?무단\s?수집\s?거부|청소년\s?보호\s?정책|회사\s?소개|광고\s?(?:문의|안내)|제휴\s?문의|전체\s?메뉴|검색)"
)
_MENU_MARK = r"\s*[|·•/>»›]\s*"
_E_MAIL = r"[\[(<]?[\w.+-]+@[\w-]+(?:\.[\w-]+)+[\])>]?"

RULES: dict[str, tuple[str, ...]] = {
    "cookie notice": (
        rf"(?:we|{_SITE}) (?:also )?uses? (?:[\w-]+ )?cookies\b.*",
        r"by (?:continuing|clicking|browsing)\b.*\bcookies\b.*",
        r"(?:accept|reject|allow|manage)(?: all)? cookies\.?",
        r"cookie (?:policy|settings|preferences|notice)",
        r".*쿠키(?:를|의)? (?:사용에 동의|설정을 변경).*",
    ),
    "copyright": (
        r".*\ball rights reserved\.?",
        r"(?:copyright\s*)?(?:©|ⓒ|\(c\)|copyright)\s*(?:©|ⓒ|\(c\))?\s*\d{4}\b.*",
        r"저작권자\s*[©ⓒ(].*",
        r".*무단\s?(?:전재|복제|배포|전제).{0,20}금지.{0,10}",
    ),
    "click here": (
        r"(?:please )?click (?:here|on the link)\b.{0,80}",
        r"(?:read|see|learn|show|view) more\W*",
        r"(?:자세히|더)\s?보기\W*",
    ),
    "menu": (
        rf"(?:{_MENU_ITEM}{_MENU_MARK})+{_MENU_ITEM}",
        r"(?:home|홈|메인)\s*[>»›]\s*\S.{0,100}",
        r"skip to (?:main )?(?:content|navigation)|jump to (?:navigation|content)|back to (?:the )?top",
        r"\W*(?:previous|next|older|newer) (?:page|post|posts|article|entry|entries)\W*",
        r"(?:본문|메뉴|주메뉴)\s?(?:으로\s?)?(?:바로\s?가기|건너뛰기)|맨\s?위로(?:\s?가기)?",
        r"\W*(?:이전|다음)\s?(?:글|기사|페이지)\W*",
    ),
    "share": (
        rf"(?:share|tweet|like|follow|join|find)(?: (?:this|us|it|me))?(?: (?:article|post|page|story))? "
        rf"(?:(?:on|via|by|to|with) )?{_NETWORK}\b.{{0,60}}",
        r"share this(?: (?:article|post|page|story))?\W*",
        rf"{_KOREAN_NETWORK}(?:으로|로|에|에서)?\s?(?:공유|보내기).{{0,20}}",
        r"(?:기사|글|URL)?\s?(?:공유하기|스크랩(?:하기)?|URL\s?복사)",
    ),
    "subscribe": (
        r"(?:subscribe|sign up)(?: (?:now|today|here))? (?:to|for)\b.{0,80}"
        r"\b(?:newsletter|updates|mailing list|feed)s?\b.{0,40}",
        r"enter your e-?mail(?: address)?\b.{0,80}",
        r"(?:뉴스레터|채널|이메일)?\s?(?:무료\s?)?구독(?:하기|신청|하세요)\W*",
    ),
    "JavaScript required": (
        r"(?:please |you (?:need to|have to|must) |to (?:use|view) .{1,40}? )?(?:enable|turn on) javascript\b.*",
        rf"(?:{_SITE} requires|your browser does not support) javascript\b.*",
        r"javascript (?:is|seems to be|must be) (?:disabled|required|enabled)\b.{0,30}\b(?:browser|site|page)\b.*",
        r".{0,40}자바스크립트를 (?:활성화|사용|허용)(?:해|하여)\s?(?:주세요|주십시오|주시기 바랍니다|야 합니다).*",
    ),
    "page number": (
        r"[-–—\[(]?\s*(?:page\s*|p\.\s*)?\d{1,3}(?:\s*(?:of|/)\s*\d{1,4})?\s*[-–—\])]?",
        r"\d{1,4}\s?(?:쪽|페이지)",
    ),
    "only symbols": (r"[\W_]+",),
    "furniture of a newspaper": (
        rf".{{0,30}}[가-힣]{{2,4}}\s?(?:선임|인턴|객원|전문)?기자\s*{_E_MAIL}",
        _E_MAIL,
        r"[▶►☞▷■●◆]\s*(?:관련\s?기사|인기\s?기사|이\s?기사|바로\s?가기|더\s?보기|기사\s?제보|제보|구독|네이버|카카오|"
        r"유튜브|페이스북).{0,100}",
        r"(?:기사\s?)?(?:입력|최종\s?수정|수정|승인|등록)\s*:?\s*\d{4}[-./년].{0,60}",
        r"[\[(](?:사진|자료\s?사진|사진\s?제공|그래픽)\s*[=:].{0,60}[\])]",
    ),
}
"""Kind of line -> case-insensitive expressions, one of which must match the whole line."""

_ANY_RULE = re.compile("|".join(f"(?:{rule})" for rules in RULES.values() for rule in rules), re.IGNORECASE)


def is_boilerplate(line: str) -> bool:
    """True if a line is boilerplate; an empty line is not."""
    return len(line) <= MAX_CHARACTERS and _ANY_RULE.fullmatch(line.strip()) is not None
