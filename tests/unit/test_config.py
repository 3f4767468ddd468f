"""Settings from YAML and overrides: read by their declared type, refused with key, value and what was expected."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import Field, ValidationError, model_validator

from unmask.config import (
    Settings,
    build_settings,
    changed_keys,
    dump_settings,
    merge,
    nearest,
    parse_overrides,
    read_settings_file,
    valid_keys,
)
from unmask.errors import SettingsError


class Wheel(Settings):
    size: int = Field(28, ge=10, le=36)
    pressure: float = Field(4.5, gt=0)
    spokes: tuple[int, int] = (32, 36)
    tubeless: bool = False


class Lamp(Settings):
    lumen: int = 100


class Bicycle(Settings):
    name: str
    kind: Literal["city", "race"] = "city"
    front: Wheel = Wheel()
    rear: Wheel = Wheel()
    lamp: str | Lamp = Lamp()
    gears: int | None = None
    owners: list[str] | None = None

    @model_validator(mode="after")
    def _fits(self) -> Bicycle:
        if self.kind == "race" and self.lamp == "dynamo":
            raise ValueError("kind=race has no lamp=dynamo: leave one out")
        return self


def read(tmp_path: Path, text: str | bytes) -> dict[str, Any]:
    path = tmp_path / "settings.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_settings_file(path)


def build(values: dict[str, Any]) -> Bicycle:
    return build_settings(Bicycle, {"name": "x", **values}, "here")


# ----------------------------------------------------------------------------------------------------------- typing


def test_the_declared_type_decides_not_yaml(tmp_path: Path) -> None:
    text = """
name: no            # YAML's own typing says false
front: {pressure: 1e-4, tubeless: no}
rear: {size: 0o34, pressure: 5, tubeless: on}
"""
    values = read(tmp_path, text.replace("0o34", "20"))
    bicycle = build_settings(Bicycle, values, "here")
    assert bicycle.name == "no"
    assert bicycle.front.pressure == 1e-4
    assert (bicycle.front.tubeless, bicycle.rear.tubeless) == (False, True)
    assert (bicycle.rear.size, bicycle.rear.pressure) == (20, 5.0)


@pytest.mark.parametrize("name", ["1e5", "2024-01-01", "1:30", "0x10", "yes", "off", ".inf", "007", "null and void"])
def test_text_stays_as_it_is_written(tmp_path: Path, name: str) -> None:
    assert build_settings(Bicycle, read(tmp_path, f"name: {name}"), "here").name == name
    assert build_settings(Bicycle, parse_overrides([f"name={name}"]), "here").name == name


@pytest.mark.parametrize("null", ["null", "~", "", "Null", "NULL"])
def test_null_is_none(tmp_path: Path, null: str) -> None:
    assert read(tmp_path, f"gears: {null}") == {"gears": None}
    assert parse_overrides([f"gears={null}"]) == {"gears": None}
    assert read(tmp_path, "gears: 'null'") == {"gears": "null"}
    assert parse_overrides(["gears='null'"]) == {"gears": "null"}


def test_lists_and_mappings(tmp_path: Path) -> None:
    assert read(tmp_path, "owners:\n- a\n- 'no'\nfront:\n  spokes: [1, 2]") == {
        "owners": ["a", "no"],
        "front": {"spokes": ["1", "2"]},
    }
    assert build(parse_overrides(["front.spokes=[20, 24]"])).front.spokes == (20, 24)
    assert build(parse_overrides(["front={size: 20}", "front.pressure=3"])).front == Wheel(size=20, pressure=3)


def test_a_value_on_the_command_line_is_text_as_it_stands() -> None:
    words = ["name=a: b #1", "kind=*.txt", "lamp=&x", "gears=a=b", "owners= spaced ", "front=!tag"]
    assert list(parse_overrides(words).values()) == ["a: b #1", "*.txt", "&x", "a=b", "spaced", "!tag"]


def test_an_empty_file_is_no_settings(tmp_path: Path) -> None:
    assert read(tmp_path, "") == {}
    assert read(tmp_path, "# nothing but a comment\n") == {}
    assert read(tmp_path, b"\xef\xbb\xbfname: x\n") == {"name": "x"}  # a byte order mark


# ----------------------------------------------------------------------------------------------- files that are wrong


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: x\nkind: a: b", "settings.yaml, line 2, column 8: not valid YAML: mapping values are not allowed here"),
        ("name: x\nname: y", "settings.yaml, line 2, column 1: not valid YAML: name is given twice"),
        ("front:\n  size: 1\n  size: 2", "line 3, column 3: not valid YAML: size is given twice"),
        ("name: x\n\tkind: y", "line 2"),
        ("owners: [a, b", "line 1, column 14: not valid YAML: expected ',' or ']'"),
        ("~: 3", "line 1, column 1: not valid YAML: null cannot be a key: expected a name"),
        ("? [a]\n: 3", r"\[a\] cannot be a key"),
        ("a: &x {b: 1}\nc: *x", "line 2, column 4: not valid YAML: aliases .* are not read: write the value out"),
        ("a: &x [*x]", "aliases"),
        ("a: !!python/object/apply:os.getcwd []", "line 1, column 4: not valid YAML: could not determine"),
        ("a: !!int abc", "line 1, column 4: not valid YAML: could not determine"),
        ("a: !!timestamp 2020-99-99", "line 1, column 4: not valid YAML: could not determine"),
        ("a: !!bool maybe", "line 1, column 4: not valid YAML: could not determine"),
        ('a: "\\UFFFFFFFF"', "settings.yaml: not valid YAML: a number in it is out of range"),
        ('a: "\\U00110000"', "settings.yaml: not valid YAML: a number in it is out of range"),
        ("a: 1\nb: \x01", "line 2: not valid YAML: a character that it does not allow"),
        ("a: 1\n---\nb: 2", "not valid YAML: but found another document"),
        ("[" * 3000, "brackets within brackets, too deep"),
        ("- a", "expected `key: value` lines, found list"),
        ("just words", "expected `key: value` lines, found str"),
        (b"name: caf\xe9", "settings.yaml: not UTF-8 at byte 9: save the recipe as UTF-8"),
    ],
)
def test_a_file_that_is_no_settings_is_refused_by_place(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        read(tmp_path, text)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.yaml", tmp_path):
        with pytest.raises(SettingsError, match=rf"{path}: cannot be read .*expected a recipe in YAML"):
            read_settings_file(path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["name"], "'name': expected key=value, such as train.steps=1000"),
        (["=x"], "'=x': expected key=value"),
        (
            ["a.text=Review", "Text"],
            r"such as train.steps=1000; quotes are for a value with blanks \('a.text=Review Text'\), brackets for "
            r"several \('key=\[a, b\]'\)",
        ),
        (["gears=1", "gears=2"], "gears is given twice: keep one"),
        (["front=x", "front.size=2"], "'front.size=2': front was given a value of its own before"),
        (["front.size=2", "front=x"], "front is given twice"),
        (["owners=[a"], r"owners=\[a, line 1, column 3: not valid YAML"),
    ],
)
def test_words_that_are_no_overrides_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse_overrides(words)


# ---------------------------------------------------------------------------------------------- values that are wrong


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("gears=many", "gears=many: expected a whole number, such as 1000"),
        ("gears=1.5", "gears=1.5: expected a whole number, such as 1000"),
        ("front.size=true", "front.size=true: expected a whole number, such as 1000"),
        ("front.size=9", "front.size=9: expected at least 10"),
        ("front.size=37", "front.size=37: expected at most 36"),
        ("front.size=null", "front.size=null: expected a whole number, such as 1000"),
        ("rear.pressure=0", "rear.pressure=0: expected more than 0.0"),
        ("rear.pressure=much", "rear.pressure=much: expected a number"),
        ("rear.pressure=inf", "rear.pressure=inf: expected a finite number"),
        ("rear.pressure=nan", "rear.pressure=nan: expected a finite number"),
        ("rear.tubeless=maybe", "rear.tubeless=maybe: expected true or false"),
        ("kind=fast", "kind=fast: expected city or race"),
        ("name=null", "name=null: expected text"),
        ("name=[a]", "name=[a]: expected text"),
        ("owners=a", "owners=a: expected a list, such as [a, b]"),
        ("owners={a: b}", "owners={a: b}: expected a list, such as [a, b]"),
        ("front.spokes=5", "front.spokes=5: expected a list, such as [a, b]"),
        ("front.spokes=[1]", "front.spokes.1 is missing: expected more values in the list"),
        ("front.spokes=[1, 2, 3]", "front.spokes=[1, 2, 3]: expected at most 2 values"),
        ("front.spokes=[1, x]", "front.spokes.1=x: expected a whole number, such as 1000"),
        ("front=28", "front=28: expected `key: value` lines under it"),
        ("front=null", "front=null: expected `key: value` lines under it"),
        ("lamp=[a]", "lamp=[a]: expected text or `key: value` lines under it"),
        ("lamp.lumen=x", "lamp.lumen=x: expected a whole number, such as 1000"),
        ("lamp.lumens=5", "unknown key lamp.lumens; did you mean lamp.lumen?"),
        ("frnt.size=20", "unknown key frnt; did you mean front?"),
        ("front.szie=20", "unknown key front.szie; did you mean front.size?"),
        ("lumen=5", "unknown key lumen; did you mean lamp.lumen?"),
        ("front.lumen=5", "unknown key front.lumen; did you mean lamp.lumen?"),
        ("Name=y", "unknown key Name; did you mean name?"),
        ("front.Size=y", "unknown key front.Size; did you mean front.size?"),
        ("quux=y", "unknown key quux; expected one of front, gears, kind, lamp, name, owners, rear"),
    ],
)
def test_a_wrong_value_is_told_with_key_value_and_what_was_expected(word: str, message: str) -> None:
    with pytest.raises(SettingsError) as refused:
        build(parse_overrides([word]))
    assert str(refused.value) == f"here: {message}"


def test_a_key_with_dots_is_told_how_it_is_written() -> None:
    for wrong in ({"front.size": "20"}, {"lamp.lumen": 5}):
        [key] = wrong
        with pytest.raises(SettingsError) as refused:
            build(wrong)
        assert str(refused.value) == f"here: {key}: one key with dots in it: write `{key.replace('.', ': {')}: ...}}`"


def test_a_contradiction_and_a_missing_key_are_told() -> None:
    with pytest.raises(SettingsError, match=r"^here: kind=race has no lamp=dynamo: leave one out$"):
        build({"kind": "race", "lamp": "dynamo"})
    with pytest.raises(SettingsError, match=r"^here: name is required$"):
        build_settings(Bicycle, {}, "here")


def test_all_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(SettingsError) as refused:
        build({"gears": "x", "front": {"sise": "1"}, "kind": "y"})
    assert sorted(str(refused.value).removeprefix("here: ").split("\n  ")) == [
        "gears=x: expected a whole number, such as 1000",
        "kind=y: expected city or race",
        "unknown key front.sise; did you mean front.size?",
    ]


def test_settings_are_immutable() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        build({}).gears = 3  # type: ignore[misc]


def test_the_nearest_name() -> None:
    valid = sorted(valid_keys(Bicycle))
    assert "lamp.lumen" in valid
    assert "front.spokes" in valid
    assert nearest("front.tubless", valid) == "; did you mean front.tubeless?"
    assert nearest("rear.tubless", valid) == "; did you mean rear.tubeless?"
    assert nearest("completely.different", valid) == ""
    assert nearest("front.spoken", ["front.size", "rear.pokes"]) == "; expected one of front.size"
    assert nearest("front.warmup", ["front.size", "rear.warmup_steps"]) == "; did you mean rear.warmup_steps?"
    here = ["front.short_prob", "other.first_prob", "rear.prob_end", "rear.size"]
    assert nearest("front.prob", here) == "; did you mean front.short_prob?"
    assert nearest("back.prob", [*here, "back.size"]) == "; expected one of back.size", "there are too many places"
    assert nearest("front.pressures", ["front.size", "rear.pressure"]) == "; did you mean rear.pressure?"
    assert nearest("rear.3.tubless", valid) == "; did you mean rear.3.tubeless?"  # an element of a list


# ---------------------------------------------------------------------------------------------------------- merging

SCALARS = st.one_of(st.none(), st.text(max_size=3), st.lists(st.text(max_size=2), max_size=2))
TREES = st.dictionaries(
    st.sampled_from("abc"), st.one_of(SCALARS, st.dictionaries(st.sampled_from("de"), SCALARS)), max_size=3
)


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for key, value in values.items():
        leaves |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return leaves


@given(under=TREES, over=TREES)
def test_what_lies_over_wins_key_by_key(under: dict[str, Any], over: dict[str, Any]) -> None:
    assume(not any(over[key] and isinstance(over[key], dict) and isinstance(under.get(key), list) for key in over))
    before = (repr(under), repr(over))
    merged = flat(merge(under, over))
    assert (repr(under), repr(over)) == before
    assert merged.items() >= flat(over).items()
    covered = {key for key in over if not isinstance(over[key], dict)}
    for key, value in flat(under).items():
        hidden = key in flat(over) or key.split(".")[0] in covered or key in over
        assert hidden or merged[key] == value


GROUPS = (("a.x", "a.y"), ("b", "c"))


@pytest.mark.parametrize(
    ("under", "over", "merged"),
    [
        ({"a": {"x": "1", "z": "2"}}, {"a": {"y": "3"}}, {"a": {"z": "2", "y": "3"}}),
        ({"a": {"x": "1"}}, {"a": {"z": "3"}}, {"a": {"x": "1", "z": "3"}}),
        ({"a": {"x": "1"}}, {"a": {"y": None}}, {"a": {"x": "1", "y": None}}),
        ({"a": {"x": "1"}}, {"a": {"x": "2", "y": "3"}}, {"a": {"x": "2", "y": "3"}}),
        ({"b": "1"}, {"c": "2"}, {"c": "2"}),
        ({"b": "1"}, {"b": "2"}, {"b": "2"}),
        ({"a": None}, {"a": {"x": "1"}}, {"a": {"x": "1"}}),
    ],
)
def test_one_of_a_group_takes_the_place_of_the_others(
    under: dict[str, Any], over: dict[str, Any], merged: dict[str, Any]
) -> None:
    assert merge(under, over, GROUPS) == merged


def test_a_number_in_a_key_is_an_element_of_the_list_that_lies_under_it() -> None:
    under = {
        "trips": [{"km": "3", "by": "day"}, {"km": "5"}],
        "owners": ["a", "b", "c"],
        "front": {"spokes": ["1", "2"]},
    }
    before = repr(under)
    words = ["trips.1.km=8", "trips.0.by=null", "owners.2=d", "owners.0=[x]", "front.spokes.1=36"]
    assert merge(under, parse_overrides(words)) == {
        "trips": [{"km": "3", "by": None}, {"km": "8"}],
        "owners": [["x"], "b", "d"],
        "front": {"spokes": ["1", "36"]},
    }
    assert repr(under) == before


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("trips.2.km=8", r"trips.2: trips holds 2 values, trips.0 to trips.1; give all .* to add one, trips=\[...\]"),
        ("trips.01=8", "trips.01: trips holds 2 values"),
        ("front.spokes.7=8", "front.spokes.7: front.spokes holds 1 value, front.spokes.0; give"),
        ("owners.0=8", r"owners.0: owners holds no values; give all of them, owners=\[...\]"),
        ("trips.-1.km=8", "trips.-1: trips holds 2 values, trips.0 to trips.1; give"),
        ("trips.km=8", "trips.km: trips holds 2 values, trips.0 to trips.1; give"),
    ],
)
def test_an_element_that_there_is_not_is_told_with_how_many_there_are(word: str, told: str) -> None:
    under = {"trips": [{"km": "3"}, {"km": "5"}], "owners": [], "front": {"spokes": ["1"]}}
    with pytest.raises(SettingsError, match=f"^{told}"):
        merge(under, parse_overrides([word]))


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("rear.spokes.0=3", "rear.spokes={0: 3}: expected a list, such as [a, b]"),  # which nothing lies under
        ("gears.0=3", "gears={0: 3}: expected a whole number, such as 1000"),
    ],
)
def test_a_number_in_a_key_under_which_no_list_lies_is_refused_as_a_value(word: str, message: str) -> None:
    under = {"owners": ["a"], "front": {"spokes": ["20", "24"]}, "gears": "3"}
    with pytest.raises(SettingsError) as refused:
        build(merge(under, parse_overrides([word])))
    assert str(refused.value) == f"here: {message}"


# ---------------------------------------------------------------------------------------------------- there and back

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["null", "no", "1e-4", "~", "*x", "&x", "a: b", "#", "- a", "[", "{", "'", '"', "\n", " x ", "\ufeff", "\x85"]
)
WHEELS = st.builds(
    Wheel,
    size=st.integers(10, 36),
    pressure=st.floats(min_value=0, exclude_min=True, allow_infinity=False, allow_nan=False),
    spokes=st.tuples(st.integers(), st.integers()),
    tubeless=st.booleans(),
)
BICYCLES = st.builds(
    Bicycle,
    name=TEXT,
    front=WHEELS,
    rear=WHEELS,
    lamp=TEXT | st.builds(Lamp, lumen=st.integers()),
    gears=st.none() | st.integers(-(10**30), 10**30),
    owners=st.none() | st.lists(TEXT, max_size=3),
)


@given(bicycle=BICYCLES)
def test_what_is_dumped_is_read_back_equal(tmp_path_factory: pytest.TempPathFactory, bicycle: Bicycle) -> None:
    path = tmp_path_factory.getbasetemp() / "dumped.yaml"
    path.write_bytes(dump_settings(bicycle).encode())
    assert build_settings(Bicycle, read_settings_file(path), "here") == bicycle


def test_changed_keys_are_told_in_order() -> None:
    before = build({"gears": "3", "lamp": {"lumen": "5"}})
    after = build({"gears": "4", "lamp": {"lumen": "6"}, "owners": ["a"], "rear": {"size": "20"}})
    changed = changed_keys(before, after)
    assert list(changed) == ["rear.size", "lamp.lumen", "gears", "owners"]
    assert changed["lamp.lumen"] == (5, 6)
    assert not changed_keys(before, before)


class Chain(Settings):
    drive: Literal["chain"] = "chain"
    links: int = 110
    width: float = 5.0


class Belt(Settings):
    drive: Literal["belt", "shaft"] = "belt"
    width: float = 8.0
    teeth: int = 60


class Shop(Settings):
    drive: Chain | Belt = Chain()


def test_a_key_of_another_member_is_told_with_what_chooses_it() -> None:
    told = r"drive.teeth belongs to drive.drive=belt or shaft: leave it out, or change drive.drive"
    with pytest.raises(SettingsError, match=told):
        build_settings(Shop, {"drive": {"drive": "chain", "teeth": "9"}}, "here")
    told = r"drive.links belongs to drive.drive=chain: leave it out, or change drive.drive"
    with pytest.raises(SettingsError, match=told):
        build_settings(Shop, {"drive": {"drive": "belt", "links": "9"}}, "here")


@pytest.mark.parametrize(
    "given",
    [
        {"optimizer.learning_rate": 1e-3, "train.steps": 5, "init_from": Path("runs/bert")},
        {"optimizer": {"learning_rate": 1e-3}, "train": {"steps": 5}, "init_from": "runs/bert"},
        {"optimizer.learning_rate": 1e-3, "train": {"steps": 5}, "init_from": Path("runs/bert")},
    ],
)
def test_overrides_may_be_a_dictionary(given: dict[str, Any]) -> None:
    expected = {"optimizer": {"learning_rate": 1e-3}, "train": {"steps": 5}, "init_from": "runs/bert"}
    assert parse_overrides(given) == expected


@pytest.mark.parametrize(
    "given", [{"task.thresholds": {"C. elegans": 0.3}}, {"task": {"thresholds": {"C. elegans": 0.3}}}]
)
def test_a_label_with_a_dot_is_one_key(given: dict[str, Any]) -> None:
    assert parse_overrides(given) == {"task": {"thresholds": {"C. elegans": 0.3}}}


def test_paths_in_lists_are_text() -> None:
    given = {"corpus": (Path("a.txt"), "b"), "train.steps": 5}
    assert parse_overrides(given) == {"corpus": ["a.txt", "b"], "train": {"steps": 5}}


@pytest.mark.parametrize("given", ["store=runs", b"store=runs", None])
def test_what_is_no_list_of_overrides(given: Any) -> None:
    with pytest.raises(SettingsError, match=f"^{given!r}: expected a list of key=value, or a dictionary"):
        parse_overrides(given)


def test_what_is_no_override() -> None:
    given: Any = {"seed": 1}
    with pytest.raises(SettingsError, match=r"^\{'seed': 1\}: expected key=value, such as"):
        parse_overrides([given])
