"""Atomic file writes, private folders, and CSV cells that are safe in spreadsheets."""

import contextlib
import csv
import io
import json
import os
import shlex
import shutil
import signal
import stat
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from triplepoint.errors import UserError


@contextlib.contextmanager
def atomic_file(path: Path, is_private: bool = False) -> Iterator[Path]:
    """Yield a scratch path next to `path`; move it there when the block succeeds, remove it when it raises.

    Args:
        path: Path of the finished file. Its folder is made if needed.
        is_private: Whether only the owner may read it.

    Raises:
        OSError: From the file system; no file has changed then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".partial-", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    scratch = Path(name)
    try:
        yield scratch
        scratch.chmod(0o600 if is_private else 0o666 & ~_umask())
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield an empty scratch folder next to `path`; it replaces `path` if the block succeeds, else it is removed.

    Raises:
        OSError: From the file system.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(".partial-", path.parent) as scratch:
        yield scratch
        scratch.chmod(0o777 & ~_umask())
        shutil.rmtree(path, ignore_errors=True)
        scratch.replace(path)


_temporary: dict[Path, int] = {}
"""Temporary folders, and the process that made each: a fork inherits the names, but not the right to remove them."""


@contextlib.contextmanager
def temporary_folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """Yield a new folder that is removed when the block ends, and also if SIGTERM ends this process.

    Args:
        prefix: Beginning of its name.
        parent: Folder to make it in; None for the system's folder of temporary files.
    """
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    _temporary[folder] = os.getpid()
    is_main = threading.current_thread() is threading.main_thread()
    is_handled = is_main and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if is_handled:
        signal.signal(signal.SIGTERM, _remove_temporary_and_end)
    try:
        yield folder
    finally:
        if is_handled:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        shutil.rmtree(folder, ignore_errors=True)
        del _temporary[folder]


def _remove_temporary_and_end(number: int, frame: object) -> None:
    """End this process by a signal, without its temporary folders."""
    for folder, owner in list(_temporary.items()):
        if owner == os.getpid():
            shutil.rmtree(folder, ignore_errors=True)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def private_folder(path: Path) -> Path:
    """Make and return a folder that only its owner can access, for files that are executed, such as pickles.

    Raises:
        UserError: If every user may change a folder above it and so could replace it with other code.
    """
    for above in path.absolute().parents:
        mode = above.stat().st_mode if above.exists() else 0
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise UserError(
                f"{above}: every user may change it, and jobs run what stands below; "
                f"'chmod o-w {shlex.quote(str(above))}', or use results elsewhere"
            )
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")
"""First characters by which a spreadsheet recognises a formula."""


def guarded(text: str) -> str:
    """Return text for a CSV cell, with a ' in front if a spreadsheet would read it as a formula.

    Source:
        OWASP, CSV Injection, https://owasp.org/www-community/attacks/CSV_Injection
    """
    return f"'{text}" if text.startswith(FORMULA_SIGNS) else text


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> str:
    """Return rows as CSV under a header; a missing cell or None is empty.

    Text that a spreadsheet would take for a formula is guarded, see `guarded`; text of a number is not.

    Raises:
        ValueError: If a row has a key that is none of the columns.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, [_cell(name) for name in columns], lineterminator="\n")
    writer.writeheader()
    writer.writerows({_cell(name): _cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    """Return the value of a CSV cell; text that is no number guarded."""
    if not isinstance(value, str):
        return value
    try:
        float(value)
    except ValueError:
        return guarded(value)
    return value


def write_text(path: Path, text: str, is_private: bool = False) -> None:
    """Write text to a file atomically."""
    with atomic_file(path, is_private) as scratch:
        scratch.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Any, is_private: bool = False) -> None:
    """Write content to a file atomically as indented JSON."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n", is_private)


def load_json(text: str | bytes) -> Any:
    """Return the content of JSON text.

    Raises:
        JSONDecodeError: If it is not JSON, or nested too deeply.
        UnicodeDecodeError: If it is not UTF-8.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise json.JSONDecodeError("nested too deeply", "", 0) from None


def write_text_if_changed(path: Path, text: str) -> bool:
    """Write text to a file unless it has that text already; return whether it was written."""
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return False
    write_text(path, text)
    return True


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
