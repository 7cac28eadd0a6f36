"""User errors: each is a `UserError` and ends in one line and exit code 2."""

import difflib
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
"""Errors that a line names: more are counted."""
USER_ERROR = 2
"""Exit status for what a user can mend."""


def refuse(why: object) -> NoReturn:
    """End the process with one line, in one write, and the status for what a user can mend."""
    sys.stderr.write(f"triplepoint: {why}\n")
    sys.exit(USER_ERROR)


class UserError(Exception):
    """A problem the user can mend: what was found, where, what was expected, what to do, in one line."""


class SeveralError(UserError):
    """Errors of one place, in one line."""

    def __init__(self, where: object, parts: Sequence[str]) -> None:
        """Say of `where` what `parts` say."""
        super().__init__(f"{where}: {'; '.join(parts)}")
        self.where, self.parts = where, parts


class Problems:
    """What is wrong with a file, said in one line at once."""

    def __init__(self, where: object) -> None:
        """Begin with nothing wrong in `where`, the file, which begins the line."""
        self._begin = f"{where}: "
        self._found: dict[str, None] = {}

    def add(self, error: UserError) -> None:
        """Note an error; one that was noted before is the same."""
        lines = [str(error)]
        if isinstance(error, SeveralError) and f"{error.where}: " == self._begin:
            lines = [f"{self._begin}{part}" for part in error.parts]
        self._found |= dict.fromkeys(lines)

    def call(self, function: Callable[..., Result], *arguments: Any) -> Result | None:
        """Return what a function returns; None where it refuses, which is noted."""
        try:
            return function(*arguments)
        except UserError as error:
            self.add(error)
            return None

    def refuse(self) -> None:
        """Refuse the file if anything was noted.

        Raises:
            UserError: With all errors, or the first ones and the number of the others; the file is named once.
        """
        if self._found:
            first, *others = list(self._found)[:MOST_ERRORS]
            more = len(self._found) - MOST_ERRORS
            told = "; ".join([first, *(line.removeprefix(self._begin) for line in others)])
            raise UserError(f"{told}{f'; and {more} more' if more > 0 else ''}")


class PointError(UserError):
    """A point that cannot run or is not simulated, on a configuration with nothing wrong in it."""


_ELSEWHERE = {
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
"""Words of Megatron-LM, DeepSpeed, torchtitan and published tables for settings and values, as they are called here."""


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint such as ` (did you mean 'tp'?)` naming the nearest known word, or all if none is near."""
    known = sorted(known)
    if (meant := _ELSEWHERE.get(word.replace("-", "_").lower())) in known:
        return f" (did you mean {meant!r}?)"
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if close:
        return f" (did you mean {close[0]!r}?)"
    return f" (known: {', '.join(known)})"


def shown(text: str) -> str:
    """Return a cell as messages quote it: short, one line."""
    flat = "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))
    return repr(flat if len(flat) <= 40 else flat[:37] + "...")


def explain_os_error(error: OSError) -> str | None:
    """Return one line for a file problem a user can mend, or None for any other error of the operating system."""
    advice = _FILE_ERRORS.get(error.errno or 0)
    if advice is None:
        return None
    # Of two names, as where a finished file is moved to its place, the second is the one the user knows.
    return f"{error.filename2 or error.filename or 'writing'}: {advice}"
