"""The errors that `unmask` raises on purpose, and the exit code each one ends a command with; those of single modules
are beside their code.

    UnmaskError
    ├── UserError          the user's: input, settings, a full disk                          exit code 2
    │   ├── InputError         a text or data file: missing, undecodable, empty, ragged ...
    │   │   ├── ColumnError        a row without a column that is needed, or with another content
    │   │   ├── ValuesError        texts or targets in memory, as scikit-learn gives them: a ValueError too
    │   │   └── TooLittleTextError texts that do not suffice
    │   ├── SettingsError      a recipe or a command line: unknown key, contradiction ...
    │   ├── OutputError        an output that exists already, cannot be written, or a full disk
    │   │   └── AnotherProcess     a directory or file in which another process works
    │   ├── StoreError         a token store that is incomplete, damaged or of another tokenizer
    │   ├── ModelError         a model or tokenizer directory that does not load strictly
    │   ├── CheckpointError    a run whose checkpoints cannot be used
    │   └── RankLost           another process of the run has ended, or does not answer
    └── AnotherRank        another process of the run has failed, and says why               its code

    KeyboardInterrupt
    └── Interrupted        Ctrl-C or SIGTERM, after everything was saved                     130 or 143

A message says what was wrong (file and line, or key, and the value), what was expected, and what to do. Anything else
that escapes a command is our own fault: exit code 1, the traceback goes to a log file.
"""

from __future__ import annotations

from typing import Self


def first_line(error: Exception) -> str:
    """The first line of what an error says, or its type where it says nothing; compilers, CUDA and gloo say much."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


class UnmaskError(Exception):
    """Root of the errors that `unmask` raises on purpose."""

    exit_code = 1


class UserError(UnmaskError):
    """Something that the user can fix; the message says how."""

    exit_code = 2


class InputError(UserError):
    """A text or data file cannot be used as it is."""


class ColumnError(InputError):
    """A row lacks a column, or holds something else there.

    Args:
        problem: what is wrong, what was expected and what is there.
        advice: which settings name the column; the answer to a request over HTTP lacks it.
    """

    def __init__(self, problem: str, advice: str = "") -> None:
        super().__init__(f"{problem} {advice}" if advice else problem)
        self.problem = problem
        self.advice = advice


class ValuesError(InputError, ValueError):
    """Texts or targets in memory cannot be used as they are; callers of scikit-learn expect a `ValueError`."""


class TooLittleTextError(InputError):
    """The texts that were read do not suffice; a caller that knows which files they came from names them."""


class SettingsError(UserError):
    """A recipe or a command line asks for something that does not exist or contradicts itself."""


class OutputError(UserError):
    """An output exists already, cannot be written, or the disk is full."""


class AnotherProcess(OutputError):  # noqa: N818  named as it is
    """Another process works in a directory, or writes a file."""


class StoreError(UserError):
    """A token store is incomplete, damaged, or was made with another tokenizer."""


class ModelError(UserError):
    """A model or tokenizer directory does not load strictly."""


class CheckpointError(UserError):
    """No checkpoint of a run can be used."""


class RankLost(UserError):  # noqa: N818  named as it is
    """Another process of a run has ended, or does not answer."""


class AnotherRank(UnmaskError):  # noqa: N818  not a fault of this process
    """Another process of a run has failed; it, or the first one, says why.

    Args:
        message: what it says.
        exit_code: of all processes.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code

    def __reduce__(self) -> tuple[type[Self], tuple[str, int]]:
        """For another process, to which Python would send the message alone."""
        return type(self), (str(self), self.exit_code)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM arrived and everything worth keeping has been saved; `except Exception` lets it through.

    Args:
        message: what was saved and how to continue.
        signal_number: 2 (SIGINT) or 15 (SIGTERM); the exit code is 128 plus it.
    """

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.signal_number = signal_number

    def __reduce__(self) -> tuple[type[Self], tuple[str, int]]:
        """For another process, to which Python would send the message alone."""
        return type(self), (str(self), self.signal_number)

    @property
    def exit_code(self) -> int:
        return 128 + self.signal_number
