"""User errors: each is a `UserError`, which commands print as one line with exit status 2."""

import errno
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, TypeVar

Result = TypeVar("Result")

_FILE_ERRORS = {
    errno.ENOSPC: "no space left on the device; free some and run again, finished runs are kept",
    errno.EDQUOT: "the disk quota is used up; free some and run again, finished runs are kept",
    errno.EROFS: "the file system is read-only; point the workflow at a folder that can be written",
    errno.EACCES: "permission denied; change the owner or mode of the folder, or use another",
    errno.EPERM: "operation not permitted; change the owner or mode of the folder, or use another",
    errno.ENOTDIR: "a part of this path is a file, not a folder; move the file away, or use another path",
    errno.EEXIST: "a file is where this folder belongs; move it away, or use another path",
    errno.EISDIR: "is a folder where a file belongs; name a file",
    errno.ENOENT: "no such file or folder, and none can be made here; check the path, and that it still exists",
    errno.ELOOP: "links that lead to each other; remove them, or use another path",
    errno.ENAMETOOLONG: "the name is too long for this file system; use a shorter one",
}


MOST_ERRORS = 12
"""Most errors that one line names; further ones are counted only."""
USER_ERROR = 2
"""Exit status for a user error."""


def refuse(why: object) -> NoReturn:
    """Print one line to standard error, in a single write, and exit with the status for a user error."""
    sys.stderr.write(f"triplepoint: {why}\n")
    sys.exit(USER_ERROR)


class UserError(Exception):
    """A problem the user can fix: place, value, expected value and remedy, in one line."""


class SeveralError(UserError):
    """Several errors in the same file or row, in one line."""

    def __init__(self, where: object, parts: Sequence[str]) -> None:
        """Join the errors `parts` of the place `where`."""
        super().__init__(f"{where}: {'; '.join(parts)}")
        self.where, self.parts = where, parts


class Problems:
    """Collector of all errors in a file, raised together as one line."""

    def __init__(self, where: object) -> None:
        """Start without errors in the file `where`, whose name begins the line."""
        self._prefix = f"{where}: "
        self._lines: dict[str, None] = {}

    def add(self, error: UserError) -> None:
        """Add an error; duplicates count once."""
        lines = [str(error)]
        if isinstance(error, SeveralError) and f"{error.where}: " == self._prefix:
            lines = [f"{self._prefix}{part}" for part in error.parts]
        self._lines |= dict.fromkeys(lines)

    def call(self, function: Callable[..., Result], *arguments: Any) -> Result | None:
        """Call a function and return its result; if it raises a `UserError`, add that and return None."""
        try:
            return function(*arguments)
        except UserError as error:
            self.add(error)
            return None

    def refuse(self) -> None:
        """Raise the collected errors, if any.

        Raises:
            UserError: With the first `MOST_ERRORS` errors and the number of the others; the file is named once.
        """
        if self._lines:
            first, *others = list(self._lines)[:MOST_ERRORS]
            more = len(self._lines) - MOST_ERRORS
            text = "; ".join([first, *(line.removeprefix(self._prefix) for line in others)])
            raise UserError(f"{text}{f'; and {more} more' if more > 0 else ''}")


class PointError(UserError):
    """A point that cannot run or cannot be simulated although the configuration is valid."""


_FOREIGN_WORDS = {
    f"{degree}{name}": key
    for degree, key in (
        ("tensor_", "tp"), ("pipeline_", "pp"), ("data_", "dp"), ("context_", "cp"), ("expert_", "ep"),
        ("expert_tensor_", "etp"), ("virtual_pipeline_", "vp"),
    )
    for name in ("parallel", "parallel_size", "parallel_degree", "model_parallel_size", "model_parallel")
} | {
    "mbs": "micro_batch_size", "gbs": "global_batch_size", "seq_len": "sequence_length",
    "seq_length": "sequence_length",
    "zero1": "optim", "zero2": "optim_grads", "zero3": "optim_grads_params", "fsdp": "optim_grads_params",
    "recompute_granularity": "recompute", "dtype": "precision", "n_gpus": "num_gpus", "world_size": "num_gpus",
}  # fmt: skip
"""Names of settings and values in Megatron-LM, DeepSpeed, torchtitan and published tables, with the name here."""


_KINDS = {
    "NoneType": "nothing", "bool": "true or false", "int": "a number", "float": "a number", "list": "a list",
    "dict": "a mapping", "date": "a date", "datetime": "a time",
}  # fmt: skip
"""Words for the types of values in YAML and JSON, by name of the type; others are text."""


def nearest(word: str, known: Iterable[str], ending: str = "") -> str:
    """Return a hint such as ` (did you mean 'tp'?)` naming the nearest known word, or all if none is near.

    Args:
        word: The word that is not known.
        known: The known words.
        ending: Ending of each word in the hint, such as `.yaml`.
    """
    known = sorted(known)
    if (translated := _FOREIGN_WORDS.get(word.replace("-", "_").lower())) in known:
        return f" (did you mean {translated + ending!r}?)"
    import difflib

    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if close:
        return f" (did you mean {close[0] + ending!r}?)"
    return f" (known: {', '.join(name + ending for name in known)})"


def not_utf8(error: UnicodeDecodeError) -> str:
    """Return what is wrong with bytes that are not text, in words."""
    return f"byte 0x{error.object[error.start]:02x} at {error.start} is not UTF-8; save it as UTF-8"


def kind_of(value: object) -> str:
    """Return the kind of a value from YAML or JSON in words, such as `a list`."""
    return _KINDS.get(type(value).__name__, "text")


def printable(text: str) -> str:
    """Return text without what could control a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def clipped(text: str, width: int) -> str:
    """Return printable text of at most `width` characters."""
    line = printable(text)
    return line if len(line) <= width else f"{line[: width - 3]}..."


def shown(text: str) -> str:
    """Return text quoted for a message: on one line, at most 40 characters."""
    return repr(clipped(" ".join(text.split()), 40))


def explain_os_error(error: OSError) -> str | None:
    """Return path and remedy of a file error that a user can fix, in one line; None for any other `OSError`."""
    advice = _FILE_ERRORS.get(error.errno or 0)
    if advice is None:
        return None
    # A rename has two names: a scratch file and the file the user knows.
    return f"{error.filename2 or error.filename or 'writing'}: {advice}"
