"""Claims: one owner at a time of a folder or file, also on file systems whose `flock` excludes nobody or is refused.

A claim is a folder with one empty file in it, whose name is its owner. Both ways to get one are a single rename, which
every file system makes whole or not at all, for one process only: a claim nobody has is a folder with the owner's file
in it moved to the name of the claim, which fails where a folder that is not empty stands; a claim whose owner has gone
is its file renamed, which fails where another was faster. The owner's thread sets the time of its file every few
seconds; others look at whether that time changes, by their own monotonic clock, so clocks of hosts are never compared.
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
"""Between two signs of life of an owner."""
STALE_S = 60.0
"""An owner on another host that gave no sign of life for so long has gone: twelve beats, and as long as NFS may keep
attributes (acregmax, nfs(5))."""
POLL_S = 0.2
HELD = "TRIPLEPOINT_CLAIMS"
"""Environment variable with the tokens of the claims this process or one of its parents holds."""

_SEPARATOR = "~"
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST)


@dataclass(frozen=True)
class Owner:
    """The process that holds a claim."""

    host: str
    pid: int
    ticks: int
    """When it started, in clock ticks since the host's boot: a number that is used again tells of another process."""
    place: str
    """Digest of the host's boot and the namespace its process numbers count in."""
    token: str

    @classmethod
    def this(cls) -> "Owner":
        """Return this process, with a token of its own."""
        host = socket.gethostname().replace(_SEPARATOR, "-").replace("/", "-")
        return cls(host, os.getpid(), start_ticks(os.getpid()) or 0, _place(), uuid.uuid4().hex)

    @classmethod
    def parse(cls, name: str) -> "Owner | None":
        """Return the owner a file is named for; None for any other file."""
        try:
            host, pid, ticks, place, token = name.split(_SEPARATOR)
            return cls(host, int(pid), int(ticks), place, token)
        except ValueError:
            return None

    @property
    def name(self) -> str:
        """Name of the owner's file."""
        return _SEPARATOR.join([self.host, str(self.pid), str(self.ticks), self.place, self.token])

    @property
    def has_ended(self) -> bool | None:
        """Whether the process has gone; None where that cannot be seen from here."""
        return has_ended(self.pid, self.ticks) if self.place == _place() else None

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class Claim:
    """A claim on what `path` stands for; released by `release`, or by the end of the process."""

    def __init__(self, path: Path, what: str) -> None:
        """Prepare the claim.

        Args:
            path: Folder that is the claim; it is made, and removed when released.
            what: What is claimed, for messages.
        """
        self._path, self._what = path, what
        self._me = Owner.this()
        self._holder: Owner | None = None
        self._seen: tuple[str, int, float] | None = None
        self._released = threading.Event()

    def acquire(self, on_wait: Callable[[str], None] | None = None) -> "Claim":
        """Wait until this process, or one of its parents, has the claim, and return it.

        Args:
            on_wait: Told who has it, once for each owner that is waited for.
        """
        told = None
        while (owner := self.try_acquire()) is not None:
            if on_wait is not None and owner != told:
                on_wait(f"{self._what}: {owner} has it; waiting")
            told = owner
            time.sleep(POLL_S)
        return self

    def try_acquire(self) -> Owner | None:
        """Take the claim if it is free or its owner has gone; return the owner that is in the way, or None.

        Whether an owner on another host has gone shows only when this is called again, `STALE_S` later.

        Raises:
            UserError: If files stand there that are no claim.
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
        threading.Thread(target=self._beat, args=(self._released,), name="claim", daemon=True).start()
        return None

    def acquire_or_refuse(self) -> "Claim":
        """Take the claim unless a living process has it, and return it.

        Raises:
            UserError: If one has it. An owner on another host is watched for `STALE_S` first.
            OSError: If the folder cannot be written to.
        """
        deadline = time.monotonic() + STALE_S + BEAT_S
        while (owner := self.try_acquire()) is not None:
            if owner.has_ended is False or time.monotonic() > deadline:
                raise UserError(f"{self._what}: in use by {owner}; wait until that has ended, or stop it")
            time.sleep(POLL_S)
        return self

    def check(self) -> None:
        """Make sure that the claim is still held, before what cannot be undone.

        Raises:
            UserError: If another process took it, or it was removed.
            OSError: If the file system does not answer.
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
        """Let others have the claim; one that was lost, or that a parent holds, is left alone."""
        holder, self._holder = self._holder, None
        self._released.set()
        if holder is not self._me or os.getpid() != self._me.pid:
            return
        _set_held([token for token in _held() if token != self._me.token])
        with contextlib.suppress(OSError):  # taken by another, or the file system has gone: then it grows stale
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
        """Return who holds the claim, or None."""
        try:
            names = sorted(path.name for path in self._path.iterdir())
        except FileNotFoundError:
            return None
        return next(filter(None, map(Owner.parse, names)), None)

    def _create(self) -> bool:
        """Make the claim, complete with its owner, where there is none; return whether that worked."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        made = self._path.with_name(f"{self._path.name}.{self._me.token}")
        try:
            made.mkdir()
            (made / self._me.name).touch(exist_ok=False)
            made.rename(self._path)
        except OSError as error:
            shutil.rmtree(made, ignore_errors=True)
            # A rename that a server made, and whose answer got lost, is made again and fails.
            if not self._file(self._me).exists() and error.errno not in _TAKEN:
                raise
        return self._file(self._me).exists()

    def _take_over(self, owner: Owner) -> bool:
        """Put this process in the place of an owner that has gone; return whether it was the first to."""
        with contextlib.suppress(FileNotFoundError):
            self._file(owner).rename(self._file(self._me))
        return self._file(self._me).exists()

    def _is_stale(self, owner: Owner) -> bool:
        has_ended = owner.has_ended
        return self._is_silent(owner) if has_ended is None else has_ended

    def _is_silent(self, owner: Owner) -> bool:
        """Return whether an owner gave no sign of life since `STALE_S`, by this process's own clock."""
        try:
            with self._file(owner).open("rb") as file:  # a client of NFS asks the server for times when it opens a file
                time_ns = os.fstat(file.fileno()).st_mtime_ns
        except FileNotFoundError:
            return False
        if self._seen is None or self._seen[:2] != (owner.name, time_ns):
            self._seen = (owner.name, time_ns, time.monotonic())
        return time.monotonic() - self._seen[2] > STALE_S

    def _try_again(self) -> Owner | None:
        """Do as `try_acquire` once more: the claim was held a moment ago, and is not now.

        Raises:
            UserError: If it is files of others that stand there, which would be in the way for ever.
        """
        try:
            strangers = [path.name for path in self._path.iterdir() if Owner.parse(path.name) is None]
        except FileNotFoundError:
            strangers = []
        if strangers:
            raise UserError(f"{self._path}: holds {strangers[0]!r}, which is not a claim; remove that folder")
        return self.try_acquire()

    def _beat(self, released: threading.Event) -> None:
        file = self._file(self._me)
        while not released.wait(BEAT_S):
            with contextlib.suppress(OSError):  # taken or removed, which `check` says; or a file system that is away
                os.utime(file)


def claim_results(results: Path) -> Claim:
    """Return the claim on a whole folder of results: one workflow or command at a time changes plan and tables."""
    return Claim(results.resolve() / ".claim", str(results))


def _place() -> str:
    """Return where process numbers mean the same: one boot of one host, and there one namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        numbers = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        boot, numbers = socket.gethostname(), ""
    return hashlib.sha256(f"{boot} {numbers}".encode()).hexdigest()[:16]


def _held() -> list[str]:
    return [token for token in os.environ.get(HELD, "").split(":") if token]


def _set_held(tokens: list[str]) -> None:
    os.environ[HELD] = ":".join(tokens)
