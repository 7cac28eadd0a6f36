"""Copy pipes to files, since readers of traces read a file more than once."""

import codecs
import os
import shutil
import stat
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

from triplepoint.errors import UserError
from triplepoint.trace.chakra.files import is_chakra
from triplepoint.trace.kineto.source import is_packed
from triplepoint.trace.profilers.database import MAGIC

STDIN = Path("-")
"""Argument that stands for standard input."""
_BLOCK_BYTES = 1 << 20
_RESERVE_BYTES = 1 << 30
_RESERVE_SHARE = 0.05
"""Free space that a copy leaves on a disk: a GiB, or this share of a small disk. Our choice."""


def spool_pipes(arguments: Sequence[Path], scratch: Path, progress: Callable[[str], None]) -> list[Path]:
    """Return the arguments with pipes replaced by files of the same name.

    All pipes are read at the same time, because a writer may write to them in turns.

    Args:
        arguments: Files, folders and pipes.
        scratch: Folder for the files; created if there is a pipe.
        progress: Receives a line before waiting.

    Raises:
        UserError: If standard input is an argument and is closed, an argument is a device without an end, a pipe holds
            binary content of no known format, or the disk is nearly full.
        OSError: If the disk is full.
    """
    paths = list(arguments)
    pipes = [index for index, path in enumerate(paths) if path == STDIN or _is_pipe(path)]
    if not pipes:
        return paths
    if STDIN in paths and sys.stdin is None:
        raise UserError("-: standard input is closed; pipe into it, or name a file")
    for index in pipes:
        _refuse_device(paths[index])
    progress(f"reading what comes through {', '.join(str(paths[index]) for index in pipes)}")
    stopped = threading.Event()
    with ThreadPoolExecutor(len(pipes)) as threads:
        copies = threads.map(lambda index: _copy(paths[index], scratch / str(index), stopped), pipes)
        try:
            for index, copy in zip(pipes, copies, strict=True):
                paths[index] = copy
        finally:
            stopped.set()
    return paths


def _is_pipe(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISSOCK(mode)


def _refuse_device(pipe: Path) -> None:
    """Raise `UserError` for a device that is no terminal, such as /dev/zero: it may have no end."""
    try:
        handle = os.dup(sys.stdin.fileno()) if pipe == STDIN else None
    except (OSError, ValueError):  # standard input is no file
        return
    is_device = stat.S_ISCHR((pipe.stat() if handle is None else os.fstat(handle)).st_mode)
    if handle is None and is_device:
        handle = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    is_refused = is_device and handle is not None and not os.isatty(handle)
    if handle is not None:
        os.close(handle)
    if is_refused:
        raise UserError(f"{pipe}: is a device, which may have no end; expected a trace file, a folder or a pipe")


def _copy(pipe: Path, folder: Path, stopped: threading.Event) -> Path:
    folder.mkdir(parents=True)
    copy = folder / ("stdin" if pipe == STDIN else pipe.name)
    with copy.open("wb") as file:
        if pipe == STDIN:
            _copy_blocks(sys.stdin.buffer, file, copy, stopped)
        else:
            with pipe.open("rb") as source:
                _copy_blocks(source, file, copy, stopped)
    return copy


def _copy_blocks(source: BinaryIO, file: BinaryIO, copy: Path, stopped: threading.Event) -> None:
    """Copy a pipe until it ends or `stopped` is set. Raises `UserError` as `spool_pipes` does."""
    is_first = True
    while not stopped.is_set() and (block := source.read(_BLOCK_BYTES)):
        if is_first and not is_chakra(copy):
            _check_start(copy, block)
        is_first = False
        disk = shutil.disk_usage(copy.parent)
        if disk.free < min(_RESERVE_BYTES, _RESERVE_SHARE * disk.total):
            raise UserError(
                f"{copy.name}: after {file.tell() / 1e9:.1f} GB from this pipe, only {disk.free / 1e9:.1f} GB of the "
                "disk for its copy are free; does the pipe end? Free some, or use another disk"
            )
        file.write(block)


def _check_start(copy: Path, block: bytes) -> None:
    """Raise `UserError` for a long beginning that is neither text, nor packed, nor a database, or only blanks.

    Of a short one the readers say better what is wrong.
    """
    if (
        len(block) < _BLOCK_BYTES
        or is_packed(block)
        or block.startswith((MAGIC, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    ):
        return
    if b"\0" in block or not block.strip():
        first = block[:12].decode("ascii", "backslashreplace").replace("\0", "\\0")
        raise UserError(
            f"{copy.name}: starts with '{first}', expected text, SQLite, or gzip or zstd of it; unpack an archive"
        )
