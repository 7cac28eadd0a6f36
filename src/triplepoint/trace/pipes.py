"""Copy pipes to files, since readers of traces read a file more than once."""

import shutil
import stat
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from triplepoint.errors import UserError

STDIN = Path("-")
"""Argument that stands for standard input."""


def spool_pipes(arguments: Sequence[Path], scratch: Path, progress: Callable[[str], None]) -> list[Path]:
    """Return the arguments with pipes replaced by files of the same name.

    All pipes are read at the same time, because a writer may write to them in turns.

    Args:
        arguments: Files, folders and pipes.
        scratch: Folder for the files; created if there is a pipe.
        progress: Receives a line before waiting.

    Raises:
        UserError: If standard input is an argument and is closed.
        OSError: If the disk is full.
    """
    paths = list(arguments)
    pipes = [index for index, path in enumerate(paths) if path == STDIN or _is_pipe(path)]
    if not pipes:
        return paths
    if STDIN in paths and sys.stdin is None:
        raise UserError("-: standard input is closed; pipe into it, or name a file")
    progress(f"reading what comes through {', '.join(str(paths[index]) for index in pipes)}")
    with ThreadPoolExecutor(len(pipes)) as threads:
        copies = threads.map(lambda index: _copy(paths[index], scratch / str(index)), pipes)
        for index, copy in zip(pipes, copies, strict=True):
            paths[index] = copy
    return paths


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
