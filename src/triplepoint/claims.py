"""Claims: locks on folders and files that also work on file systems without a reliable `flock`.

A claim is a folder with one empty file, whose name identifies the owner. A process gets a claim by a single rename,
which is atomic on every file system. A free claim: it makes a folder with its file and renames it to the claim, which
fails if a claim with an owner exists. A claim whose owner has ended: it renames the owner's file, which fails if
another process was faster. A thread of the owner touches its file every few seconds. Other hosts check by their own
monotonic clock whether the time of the file changes, so clocks of hosts are never compared.
"""

import contextlib
import errno
import hashlib
import os
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from triplepoint.errors import UserError
from triplepoint.processes import has_ended, start_ticks

BEAT_S = 5.0
"""Period at which an owner touches its file."""
STALE_S = 60.0
"""Time without a touch after which an owner on another host counts as ended: twelve periods, and the longest that NFS
caches attributes (acregmax, nfs(5))."""
POLL_S = 0.2
"""Period at which a waiting process tries again."""
HELD = "TRIPLEPOINT_CLAIMS"
"""Environment variable with the tokens of the claims that this process or one of its parents holds."""

_SEPARATOR = "~"
_EXISTS_ERRORS = (errno.ENOTEMPTY, errno.EEXIST)
"""Errors of a rename onto a claim that has an owner."""


@dataclass(frozen=True)
class Owner:
    """The process that holds a claim."""

    host: str
    pid: int
    ticks: int
    """Start of the process in clock ticks since boot, which distinguishes processes with the same id."""
    place: str
    """Digest of the host's boot id and the PID namespace."""
    token: str
    """Random text, unique to the claim."""

    @classmethod
    def this(cls) -> "Owner":
        """Return this process, with a new token."""
        host = socket.gethostname().replace(_SEPARATOR, "-").replace("/", "-")
        return cls(host, os.getpid(), start_ticks(os.getpid()) or 0, _place(), uuid.uuid4().hex)

    @classmethod
    def parse(cls, name: str) -> "Owner | None":
        """Return the owner that the name of a file identifies; None for any other file."""
        try:
            host, pid, ticks, place, token = name.split(_SEPARATOR)
            return cls(host, int(pid), int(ticks), place, token)
        except ValueError:
            return None

    @property
    def name(self) -> str:
        """Name of the owner's file in the claim."""
        return _SEPARATOR.join([self.host, str(self.pid), str(self.ticks), self.place, self.token])

    @property
    def has_ended(self) -> bool | None:
        """Whether the process has ended; None if that cannot be seen from this host and namespace."""
        return has_ended(self.pid, self.ticks) if self.place == _place() else None

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class Claim:
    """A claim; it ends with `release` or with the process."""

    def __init__(self, path: Path, what: str) -> None:
        """Prepare the claim.

        Args:
            path: Folder that is the claim: made to acquire it, removed to release it.
            what: Name of the claimed thing, for messages.
        """
        self._path, self._what = path, what
        self._me = Owner.this()
        self._holder: Owner | None = None
        self._last_touch: tuple[str, int, float] | None = None
        """Owner's file name, its time in ns, and the monotonic time in s at which that time was first seen."""
        self._released = threading.Event()

    def acquire(self, on_wait: Callable[[str], None] | None = None) -> "Claim":
        """Wait until this process, or one of its parents, has the claim, and return it.

        Args:
            on_wait: Called with a message, once for each owner that is waited for.
        """
        last_owner = None
        while (owner := self.try_acquire()) is not None:
            if on_wait is not None and owner != last_owner:
                on_wait(f"{self._what}: {owner} has it; waiting")
            last_owner = owner
            time.sleep(POLL_S)
        return self

    def try_acquire(self) -> Owner | None:
        """Take the claim if it is free or its owner has ended; return None, or the owner that still holds it.

        The end of an owner on another host is noticed only by a later call, after `STALE_S`.

        Raises:
            UserError: If the folder has other files.
            OSError: If the folder cannot be written to.
        """
        if self._holder is not None:
            return None
        owner = self._owner()
        if owner is not None and owner.token in os.environ.get(HELD, "").split(":"):
            self._holder = owner
            return None
        if not (self._create() if owner is None else self._is_stale(owner) and self._take_over(owner)):
            return owner or self._owner() or self._try_again()
        self._holder = self._me
        _set_held([*_held(), self._me.token])
        self._released.clear()
        threading.Thread(target=self._touch_regularly, args=(self._released,), name="claim", daemon=True).start()
        return None

    def acquire_or_refuse(self) -> "Claim":
        """Take the claim and return it.

        Raises:
            UserError: If a running process has it. An owner on another host is watched for `STALE_S` first.
            OSError: If the folder cannot be written to.
        """
        deadline = time.monotonic() + STALE_S + BEAT_S
        while (owner := self.try_acquire()) is not None:
            if owner.has_ended is False or time.monotonic() > deadline:
                raise UserError(f"{self._what}: in use by {owner}; wait until that has ended, or stop it")
            time.sleep(POLL_S)
        return self

    def check(self) -> None:
        """Check that this process still holds the claim; to be called before a step that cannot be undone.

        Raises:
            UserError: If another process took it, or it was removed.
            OSError: If the file system does not respond.
        """
        assert self._holder is not None, "only a claim that was acquired is checked"
        self._path.parent.stat()
        if not self._file(self._holder).exists():
            taker = self._owner()
            raise UserError(
                f"{self._what}: "
                + (f"{taker} took over" if taker else f"the claim {self._path} was removed")
                + f" while {self._holder} had it; run again"
            )

    def release(self) -> None:
        """Release the claim; does nothing if it was lost or a parent holds it."""
        holder, self._holder = self._holder, None
        self._released.set()
        if holder is not self._me or os.getpid() != self._me.pid:
            return
        _set_held([token for token in _held() if token != self._me.token])
        with contextlib.suppress(OSError):  # taken by another process, or no file system: the claim becomes stale
            self._file(self._me).unlink()
            self._path.rmdir()

    def __enter__(self) -> "Claim":
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    def _file(self, owner: Owner) -> Path:
        return self._path / owner.name

    def _owner(self) -> Owner | None:
        """Return the owner of the claim; None if it is free."""
        try:
            names = sorted(path.name for path in self._path.iterdir())
        except FileNotFoundError:
            return None
        return next(filter(None, map(Owner.parse, names)), None)

    def _create(self) -> bool:
        """Make the claim with this process as its owner; return whether that succeeded."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        scratch = self._path.with_name(f"{self._path.name}.{self._me.token}")
        try:
            scratch.mkdir()
            (scratch / self._me.name).touch(exist_ok=False)
            scratch.rename(self._path)
        except OSError as error:
            shutil.rmtree(scratch, ignore_errors=True)
            # If a server's reply is lost, the client repeats the rename, which fails although the first succeeded.
            if not self._file(self._me).exists() and error.errno not in _EXISTS_ERRORS:
                raise
        return self._file(self._me).exists()

    def _take_over(self, owner: Owner) -> bool:
        """Replace an owner that has ended by this process; return whether that succeeded."""
        with contextlib.suppress(FileNotFoundError):
            self._file(owner).rename(self._file(self._me))
        return self._file(self._me).exists()

    def _is_stale(self, owner: Owner) -> bool:
        """Return whether an owner has ended, as far as can be seen."""
        has_ended = owner.has_ended
        return self._is_silent(owner) if has_ended is None else has_ended

    def _is_silent(self, owner: Owner) -> bool:
        """Return whether an owner has not touched its file for `STALE_S`, by the clock of this process."""
        try:
            with self._file(owner).open("rb") as file:  # opening makes an NFS client ask the server for the times
                time_ns = os.fstat(file.fileno()).st_mtime_ns
        except FileNotFoundError:
            return False
        if self._last_touch is None or self._last_touch[:2] != (owner.name, time_ns):
            self._last_touch = (owner.name, time_ns, time.monotonic())
        return time.monotonic() - self._last_touch[2] > STALE_S

    def _try_again(self) -> Owner | None:
        """Repeat `try_acquire` after the claim was held but became free in the meantime.

        Raises:
            UserError: If the folder has other files, which would block the claim forever.
        """
        try:
            other_files = [path.name for path in self._path.iterdir() if Owner.parse(path.name) is None]
        except FileNotFoundError:
            other_files = []
        if other_files:
            raise UserError(f"{self._path}: holds {other_files[0]!r}, which is not a claim; remove that folder")
        return self.try_acquire()

    def _touch_regularly(self, released: threading.Event) -> None:
        """Touch the owner's file every `BEAT_S` until the claim is released."""
        file = self._file(self._me)
        while not released.wait(BEAT_S):
            with contextlib.suppress(OSError):  # lost, which `check` reports; or no file system at the moment
                os.utime(file)


def claim_results(results: Path) -> Claim:
    """Return the claim on a results folder: one workflow or command at a time changes plan and tables."""
    return Claim(results.resolve() / ".claim", str(results))


def _place() -> str:
    """Return a digest of boot and PID namespace, within which process ids are comparable."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        boot, namespace = socket.gethostname(), ""
    return hashlib.sha256(f"{boot} {namespace}".encode()).hexdigest()[:16]


def _held() -> list[str]:
    return [token for token in os.environ.get(HELD, "").split(":") if token]


def _set_held(tokens: list[str]) -> None:
    os.environ[HELD] = ":".join(tokens)
