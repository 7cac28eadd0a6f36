"""SHA-256 of the files a point names, so that a changed corpus under the same path is another point.

A corpus may have terabytes, so digests are cached by path, size, times and inode. Without a writable cache file,
files are read each time.
"""

import contextlib
import hashlib
import os
import sys
import time
from pathlib import Path
from typing import Any

from triplepoint.config.point import BYTES, Contents, Point
from triplepoint.errors import UserError
from triplepoint.files import load_json, write_json
from triplepoint.units import GIB, MIB, NS_PER_S

CORPUS_LIMIT_BYTES = 4 * MIB
"""Part of a text corpus that is read: far more than the steps of a measurement need, and fast to load."""

_BLOCK_BYTES = 4 * MIB
_LARGE_BYTES = 2 * GIB
"""Size from which on a message announces the read, which takes more than a second or two."""
_SETTLED_S = 2.0
"""Age below which the digest of a file is not cached: the file may change again within the resolution of its times."""

_Stamp = list[int]


class Digests:
    """SHA-256 of files, cached in a JSON file."""

    def __init__(self, path: Path | None = None, is_kept: bool = True) -> None:
        """Read the cached digests.

        Args:
            path: The cache file. None: the user's, see `cache_path`.
            is_kept: Whether to write new digests there.
        """
        self._path = path or cache_path()
        self._is_kept = is_kept
        self.known: dict[str, list[Any]] = _read(self._path)
        """Cache entries by path and limit: size, two times, inode and digest of the file."""
        self._returned: dict[str, str | None] = {}

    def of(self, path: Path, limit: int | None = None) -> str | None:
        """Return the digest of a file; None if it is missing or cannot be read.

        Args:
            path: The file.
            limit: Bytes from the start to hash. None: the whole file.
        """
        key = f"{path.absolute()}:{limit or ''}"
        if key not in self._returned:
            try:
                self._returned[key] = self._look_up(key, path, limit) if path.is_file() else None
            except OSError:
                self._returned[key] = None
        return self._returned[key]

    @property
    def used(self) -> dict[str, list[Any]]:
        """Cache entries of the files that `of` was called for."""
        return {key: self.known[key] for key in self._returned if key in self.known}

    def _look_up(self, key: str, path: Path, limit: int | None) -> str:
        """Return the digest of a file from the cache, or hash the file and add it to the cache."""
        stamp = _stamp(path)
        if key in self.known and self.known[key][:-1] == stamp:
            return str(self.known[key][-1])
        digest = _sha256(path, limit)
        if _stamp(path) == stamp and abs(time.time() - max(stamp[1:3]) / NS_PER_S) > _SETTLED_S:
            self.known[key] = [*stamp, digest]
            if self._is_kept:
                with contextlib.suppress(OSError):  # read-only, full or absent: read again next time
                    write_json(self._path, self.known, is_private=True)
        return digest


def cache_path() -> Path:
    """Return the path of the user's cache of digests."""
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder) / "triplepoint" / "contents.json"


def with_contents(point: Point, digests: Digests) -> Point:
    """Return the point with the digests of the files it names; unchanged if it is simulated or names none.

    A file that is missing here gets no digest: it may exist on the nodes only. The engine reports it if it does not.

    Args:
        point: A folded point, see `config.rules.fold`.
        digests: Cache of digests, shared by all points of a plan.
    """
    if point.engine == "simulated":
        return point
    contents = contents_of(point, digests)
    return point if contents == Contents() else point.model_copy(update={"contents": contents})


def contents_of(point: Point, digests: Digests) -> Contents:
    """Return the digests of the files a point names. Raises `UserError` if one of them is a folder, pipe or device."""
    for key in Contents.model_fields:
        path = Path(getattr(point, key))
        if path.exists() and not path.is_file():
            raise UserError(f"{key} {str(path)!r}: a folder, pipe or device, expected a file")
    return Contents(
        corpus=None if point.corpus in ("random", "stdlib") else _of_corpus(point.corpus, digests),
        weights=None if point.weights == "random" else digests.of(Path(point.weights)),
        tokenizer=None if point.tokenizer == BYTES else digests.of(Path(point.tokenizer)),
    )


def check_contents(point: Point, digests: Digests) -> None:
    """Check that the files a point names have not changed since it was planned.

    Raises:
        UserError: If one of them has changed. A missing file is reported by the engine.
    """
    if point.contents is None:
        return
    contents = contents_of(point, digests)
    for key in Contents.model_fields:
        planned, now = getattr(point.contents, key), getattr(contents, key)
        if planned is not None and now is not None and planned != now:
            raise UserError(
                f"{key} {getattr(point, key)}: changed since the plan was made; run snakemake again, or 'triplepoint "
                "plan --write', which plans a run of its own for what is there now"
            )


def _of_corpus(corpus: str, digests: Digests) -> str | None:
    """Return the digest of a text file, or of both files of an indexed corpus."""
    index, binary = Path(f"{corpus}.idx"), Path(f"{corpus}.bin")
    if not index.is_file() and not binary.is_file():
        return digests.of(Path(corpus), CORPUS_LIMIT_BYTES)
    both = digests.of(index), digests.of(binary)
    return None if None in both else hashlib.sha256("".join(map(str, both)).encode()).hexdigest()


def _stamp(path: Path) -> _Stamp:
    """Return size, modification time, change time and inode of a file."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _sha256(path: Path, limit: int | None) -> str:
    """Return the SHA-256 of the first `limit` bytes of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    left = path.stat().st_size if limit is None else limit
    if left >= _LARGE_BYTES:
        print(f"triplepoint: reading {path}, {left / GIB:.0f} GiB, once for its SHA-256", file=sys.stderr)
    with path.open("rb") as file:
        while left > 0 and (block := file.read(min(left, _BLOCK_BYTES))):
            digest.update(block)
            left -= len(block)
    return digest.hexdigest()


def _read(path: Path) -> dict[str, list[Any]]:
    """Return the entries of the cache file; none if it is missing or damaged."""
    try:
        content = load_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) and all(isinstance(entry, list) for entry in content.values()) else {}
