"""What all processes of a run have to have alike."""

from __future__ import annotations

from typing import Any

import pytest

from unmask.errors import SettingsError
from unmask.recipe.tree import PretrainRecipe
from unmask.training.distributed import Ranks
from unmask.training.run import environment
from unmask.training.run.together import check_same_run
from unmask.training.settings import TrainSettings


class Second(Ranks):
    """The second of two processes, without the first: `from_first` gives what this one has, changed."""

    def __init__(self, code: dict[str, Any]) -> None:
        super().__init__(rank=1, size=2)
        object.__setattr__(self, "code", code)

    def from_first(self, value: Any) -> Any:
        recipe, code = value
        return recipe, {"versions": code["versions"] | self.code.get("versions", {})} | {
            name: each for name, each in (code | self.code).items() if name != "versions"
        }


RECIPE = PretrainRecipe(store="s", train=TrainSettings(steps=1))


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ({"versions": {"numpy": "1.0"}}, r"runs numpy \S+, and the first one 1\.0: install the same"),
        ({"source_sha256": "ab"}, r"runs the code of unmask \w{12}, and the first one ab: install the same"),
        ({"git_commit": "ab"}, r"runs the commit of unmask cd, and the first one ab: install the same"),
    ],
)
def test_other_code_is_refused(monkeypatch: pytest.MonkeyPatch, code: dict[str, Any], told: str) -> None:
    monkeypatch.setattr(environment, "_git_commit", lambda source: "cd")
    with pytest.raises(SettingsError, match=told):
        check_same_run(RECIPE, Second(code))


@pytest.mark.parametrize("commit", ["cd", None])
def test_the_same_code_is_not(monkeypatch: pytest.MonkeyPatch, commit: str | None) -> None:
    """Nor one that is no checkout, of which no commit is known."""
    monkeypatch.setattr(environment, "_git_commit", lambda source: "cd")
    check_same_run(RECIPE, Second({"git_commit": commit}))
