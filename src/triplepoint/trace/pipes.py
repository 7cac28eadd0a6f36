"""What comes through a pipe, kept in a file while it is read: a reader goes back to where it began."""

import shutil
import stat
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from triplepoint.errors import UserError

STDIN = Path("-")
"""Argument that stands for standard input."""


def spooled(arguments: Sequence[Path], scratch: Path, progress: Callable[[str], None]) -> list[Path]:
    """Return the arguments with files in place of pipes, each of the name of its pipe.

    All pipes are read at once: one writer may feed them in turns.

    Args:
        arguments: Files, folders and pipes.
        scratch: Folder for the files; made where there is a pipe.
        progress: Called while waiting.

    Raises:
        UserError: If standard input is meant and closed.
        OSError: If the disk is full.
    """
    found = list(arguments)
    pipes = [index for index, path in enumerate(found) if path == STDIN or _is_pipe(path)]
    if not pipes:
        return found
    if STDIN in found and sys.stdin is None:
        raise UserError("-: standard input is closed; pipe into it, or name a file")
    progress(f"reading what comes through {', '.join(str(found[index]) for index in pipes)}")
    with ThreadPoolExecutor(len(pipes)) as threads:
        copies = threads.map(lambda index: _copy(found[index], scratch / str(index)), pipes)
        for index, copy in zip(pipes, copies, strict=True):
            found[index] = copy
    return found


def _is_pipe(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISSOCK(mode)


def _copy(pipe: Path, folder: Path) -> Path:
    folder.mkdir(parents=True)
    copy = folder / ("stdin" if pipe == STDIN else pipe.name)
    with copy.open("wb") as file:
        if pipe == STDIN:
            shutil.copyfileobj(sys.stdin.buffer, file)
        else:
            with pipe.open("rb") as source:
                shutil.copyfileobj(source, file)
    return copy
