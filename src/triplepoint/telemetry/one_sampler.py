"""One sampler per GPU: two would read the same counters and double what reading costs."""

import fcntl
import os
from collections.abc import Iterable
from pathlib import Path

from triplepoint.errors import UserError
from triplepoint.telemetry.kernel_files import node_folder


class Claim:
    """GPUs this process samples, until it closes the claim or ends, however it ends."""

    def __init__(self, identities: Iterable[str], out: Path, folder: Path | None = None) -> None:
        """Claim GPUs.

        Args:
            identities: UUIDs of the GPUs.
            out: Where this process writes; named to whoever comes second.
            folder: Where the locks are, the same for all users of the machine.

        Raises:
            UserError: If another sampler holds one of them.
        """
        self._held: list[int] = []
        for identity in identities:
            path = (folder or node_folder()) / f"triplepoint-{identity.replace('/', '_')}.lock"
            try:
                self._held.append(_lock(path, identity, out))
            except PermissionError:
                continue  # another user's leftover below a sticky folder: sampling twice is a waste, not a fault
            except UserError:
                self.close()
                raise

    def close(self) -> None:
        """Let another sampler have the GPUs."""
        while self._held:
            os.close(self._held.pop())


def _lock(path: Path, identity: str, out: Path) -> int:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(file, 4096, 0).decode(errors="replace").strip() or "?"
        os.close(file)
        raise UserError(
            f"GPU {identity} is sampled already by process {owner}; stop that one first (lock {path})"
        ) from None
    os.ftruncate(file, 0)
    os.pwrite(file, f"{os.getpid()} into {out}".encode(), 0)
    return file
