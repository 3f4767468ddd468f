"""Sentence bounds: worked examples in English and Korean, and properties that hold for any text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask.corpus.sentences.rules import split_sentences

# Each line shows where it is to be split, by " | ".
ENGLISH = """
It rained. | We stayed in! | Did you? | Yes.
Mr. Smith met Dr. Jones at St. Louis. | They talked to Mrs. Brown.
He lived in the U.S. for years. | The U.S. Army left. | He moved to the U.S. | He liked it.
See No. 5, vol. II and pp. 3, i.e. the end. | "No." | He did not.
J. R. R. Tolkien and George W. Bush never met. | P.D.Q. Bach did not either.
He was born on Jan. 5, 1905 (O.S. Dec. 23, 1904). | Nobody knew.
It cost 3.5 dollars in 1995. | The U.K. paid 37.5 percent.
He got a Ph.D. in physics. | He has a Ph.D. | She has none.
Birds, fish, etc. are animals. | He likes birds, fish, etc. | Nobody knows why.
She works at Apple Inc. in Cupertino. | Apple Inc. | The company grew.
At 5 p.m. Eastern time it closed. | It closed at 5 p.m. | Nobody came.
Martin Luther King Jr. Day is in January. | He was called King Jr. | He knew.
Germany lost World War I. | Elizabeth I. | Germany lost.
It is rich in vitamin C. | Many fruits are.
He said. | "Yes." | She nodded. | "No," he said.
"What?" he asked. | "Stop!" cried Tom. | "Why?" I asked. | "Why?" | He left.
“Really?” Mr. Brown asked. | “Really!”
Well... he left. | Really... | He left. | I... I do not know. | To-day.... | I forgot.
It made sense... | I stayed. | "... The rest is silence." | It is so [...] | There is more.
“What?” Mrs. Adams inquired. | “Done!” I gasped. | “Why?” | She cried. | “No!” | Tom replied: “Yes.”
It was a great feat. | The song is by Ann (feat. Drake) and feat. Drake.
The domain is at one.com. | Viii. | It is so. | He read it. | Nobody did.
What?! | Never!! | So be it.
He left (see below.) and came back. | (It was late.) | Then he slept.
It was his (b. 1950. He knew) and hers. | End.
He said so.[3] | She did not.:45–47, 303 | They did.
The man . | He said 3 @.@ 5 . | Next .
all in lower case. | nobody minds. | Who does? | This is upper.
The iron is hot at 20 °F. | Water is not.
It is somebody else's. | Twilight came.
1. First of all. | 2. Then this. | 3. And that.
Pay $12,256. | 37.0% of it is lost.
"""

KOREAN = """
비가 왔다. | 우리는 집에 있었다! | 그랬나요? | 네.
그는 말했다. | "그래." | 그리고 갔다.
그는 "나는 간다. 너는 와라."라고 말했다. | 끝이다.
그는 “나는 간다! 너는?” 하고 물었다. | 끝이다.
'간다. 온다.'며 말했다. | 끝이다.
"가자!" 라고 말했다. | "가자!" | 그가 말했다.
1. 항목 하나. | 2. 항목 둘. | 가. 목적이다.
엄단, 3. 경제, 4. 중소기업 육성을 기본정책으로 채택했다. | 끝이다.
…다고 한다. | 그는 갔다. | 그런데… 아니라고 했다… | 그래서 갔다.
2019. 3. 15. 서울에서 태어났다. | 값은 3.5원이다. | 1995년이다.
J. 로버트 오펜하이머는 미국의 과학자이다. | 그는 U.S. 스틸에 있었다.
첫 국장은(옛 이름은 '치프'였으나 바뀜.) 핀치였다. | 사건이다. | (그러나 아니다.) | 끝이다.
해안선이 길다.(전체 길이가 길다.) | 사막의 열풍이 분다. | 추측된다.(외계 위성) | 끝이다.
구별이 없었다. | actio에서 나왔다.
안녕하세요 | 저는 학생입니다 | 반갑습니다ㅎㅎ | 잘 부탁해요~ | 네
반갑습니다 | 저는 학생이다. | 끝.
영화였다 | 그래서 또 봤어요
그렇습니다 라고 말했다
"""

# No white space is needed after the signs of chat: here "|" alone shows where to split.
KOREAN_CHAT = """
역사 왜곡 영화..|그 당시에 이런 무기가 있었다면...돈이 아깝다!!|정말로
재밌게 봤는데.. 결말이 좀 그렇고... 아쉬움ㅋㅋ
아..정말 재밌다ㅋㅋㅋ|또 보고 싶음 |연기 최고~ |꼭 보세요^^|끝
어디가 재밌다는 거야,,,|그래서 봤더니,,,별로임 ㅠㅠ |그만하자
이건 아니다 !! |왜 만들었지??ㅡㅡ|돈 돌려줘
정말 잘 만든다 |배우들 연기가 좋았음 좋겠다 ㅎㅎ |안녕
"""

EAST_ASIAN = "你好。|我是学生！|「行くよ。」と言った。|そうだ。|本当？|はい"


@pytest.mark.parametrize("line", [*ENGLISH.strip().splitlines(), *KOREAN.strip().splitlines()])
def test_worked_examples(line: str) -> None:
    text = line.replace(" | ", " ")
    assert [text[start:end] for start, end in split_sentences(text)] == line.split(" | ")


@pytest.mark.parametrize("line", KOREAN_CHAT.strip().splitlines())
def test_worked_examples_of_chat(line: str) -> None:
    text = line.replace("|", "")
    assert [text[start:end] for start, end in split_sentences(text)] == [part.strip() for part in line.split("|")]


def sentences(text: str) -> list[str]:
    return [text[start:end] for start, end in split_sentences(text)]


def test_no_white_space_is_needed_after_korean_endings_and_east_asian_stops() -> None:
    assert sentences("사용했다.그는 갔다. 끝.") == ["사용했다.", "그는 갔다.", "끝."]
    assert sentences("그가 갔나요?그는 갔다!나는 왔다. 끝.") == ["그가 갔나요?", "그는 갔다!", "나는 왔다.", "끝."]
    assert sentences(EAST_ASIAN.replace("|", "")) == EAST_ASIAN.split("|")
    assert sentences("www.unmask.example is 3.5 times Node.js.") == ["www.unmask.example is 3.5 times Node.js."]


@pytest.mark.parametrize(
    "line",
    [
        "هل تحب الكتاب؟ | نعم، أحبه كثيرًا.",
        "یہ ایک کتاب ہے۔ | وہ گھر ہے۔ | ہاں",
        "दिल्ली भारत की राजधानी है। | मैंने देखा॥ | ठीक।",
        "Ես գնում եմ։ | Դու գալիս ես։",
        "ሰላም። | እንዴት ነህ።",
        "ကျွန်တော် သွားမယ်။ | သူ လာတယ်။",
        "ខ្ញុំទៅ។ | គាត់មក។",
    ],
)
def test_stops_of_other_scripts_end_a_sentence(line: str) -> None:
    assert sentences(line.replace(" | ", " ")) == line.split(" | ")


def test_a_line_break_always_ends_a_sentence() -> None:
    text = "  A heading\n\nMr.\r\n Smith went\x0bhome \u2028\t\n"
    assert sentences(text) == ["A heading", "Mr.", "Smith went", "home"]


WORDS = "Mr U.S No I a The he 5 1 Sept house é 다 니다 습니다 요 라고 함 ㅋㅋ ㅡㅡ ~ ^^ .. ,,"
PIECES = st.sampled_from([*" \n.!?…。\"'“”()[]「」,:-", *WORDS.split(), "아주 좋은"])
TEXT = st.one_of(st.text(), st.lists(PIECES).map("".join), st.lists(PIECES).map(" ".join))


@given(TEXT)
def test_bounds_are_ordered_tight_and_cover_the_text(text: str) -> None:
    bounds = split_sentences(text)
    covered = 0
    for start, end in bounds:
        sentence = text[start:end]
        assert covered <= start < end
        assert sentence == sentence.strip()
        assert len(sentence.splitlines()) == 1
        assert text[covered:start].strip() == ""
        covered = end
    assert text[covered:].strip() == ""


class Everything:
    """A set that holds all there is."""

    def __contains__(self, _: object) -> bool:
        return True


@given(TEXT)
def test_what_is_taken_for_certain_is_what_the_rules_say(text: str) -> None:
    bounds = split_sentences(text)
    with pytest.MonkeyPatch.context() as patch:  # so that every stop is looked at closer
        patch.setattr("unmask.corpus.sentences.rules._SHORTENED_TAILS", Everything())
        assert split_sentences(text) == bounds


@given(st.lists(PIECES).map("".join), st.lists(PIECES).map("".join))
def test_lines_are_split_alone(first: str, second: str) -> None:
    assert sentences(f"{first}\n{second}") == sentences(first) + sentences(second)


# Each would take hours or more, not a second or two, if any rule looked back or ahead without a bound.
ENDLESS = """a|.|?| .|a. |A.|."|다. "|(a. |("|니다 |ㅋ|한다. “|a!"|(가.) 나 가.) 나 |1. |'가 |,|,,가|~ """
ENDLESS_CHAT = "가고.. |...가|ㅡㅡ가|^|좋음 |He. "


@pytest.mark.parametrize("piece", [*ENDLESS.split("|"), *ENDLESS_CHAT.split("|")])
def test_time_is_linear_in_the_length_of_a_line(piece: str) -> None:
    text = piece * (500_000 // len(piece)) + "x"
    bounds = split_sentences(text)
    assert bounds[0][0] == len(text) - len(text.lstrip())
    assert bounds[-1][1] == len(text)


def test_a_line_of_three_megabytes_without_a_stop_is_one_sentence() -> None:
    text = "word " * 600_000 + "end"
    assert split_sentences(text) == [(0, len(text))]
