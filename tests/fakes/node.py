"""A fake node made from a scenario, which the real bindings find, and its ground truth.

    with fake_node(hgx_h200().set_all(load=square(1.0, 0.25))) as node:
        ...                                  # in this process: load the library by its name, as on a real machine
        subprocess.run(..., env=node.env)    # in other processes

Libraries are found by their soname. Other processes find them through LD_LIBRARY_PATH. In this process they are
already loaded.
"""

import ctypes
import os
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from mmap import mmap
from pathlib import Path
from typing import Any

from tests.fakes.build import build_library
from tests.fakes.scenario import Scenario
from tests.fakes.sysfs import Sysfs
from tests.fakes.truth import Truth
from tests.fakes.wave import Wave

NS_PER_S = 1_000_000_000
GENERATION = struct.Struct("<Q")
CLOCK = struct.Struct("<q")
CLOCK_AT = GENERATION.size
COUNTS_AT = 64
COUNT = struct.Struct("<QQ48s")
NUM_COUNTS = 1023
FIELD_MARK = 1 << 63

FieldCall = tuple[int, int]
"""Field and scope in a call of nvmlDeviceGetFieldValues."""


class FakeNode:
    """A fake node that is up.

    Attributes:
        scenario: Scenario of the node. Call `change` after changing it.
        library: Path of the fake library of its vendor.
        folder: Folder shared with the library: the scenario file, and a page with the clock and counts of calls.
        sysfs_root: Root of its sysfs tree.
        sysfs: Writer of that tree.
        start_ns: Start of the scenario on the monotonic clock. Unit: ns.
        start_wall_ns: Start of the scenario on the wall clock. Unit: ns.
    """

    def __init__(self, scenario: Scenario, folder: Path, library: Path) -> None:
        self.scenario = scenario
        self.library = library
        self.folder = folder
        self.sysfs_root = folder / "sys"
        self.start_ns = time.monotonic_ns()
        self.start_wall_ns = time.time_ns()
        page = folder / "page"
        page.write_bytes(bytes(COUNTS_AT + NUM_COUNTS * COUNT.size))
        with page.open("r+b") as file:
            self._page: Any = mmap(file.fileno(), 0)
        self._generation = 0
        self._write_clock(self.start_ns)
        self.change()
        self.sysfs = Sysfs(self.sysfs_root, scenario.host, self.time_s)

    @property
    def env(self) -> dict[str, str]:
        """Environment in which another process finds this node."""
        return {**os.environ, **self.variables()}

    def variables(self) -> dict[str, str]:
        """Return the environment variables that lead to this node, without those of this process."""
        paths = [str(self.library.parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        return {
            "LD_LIBRARY_PATH": ":".join(paths),
            "ROCM_PATH": str(self.library.parent.parent),
            "TRIPLEPOINT_FAKE_NODE": str(self.folder),
            "TRIPLEPOINT_SYSFS": str(self.sysfs_root),
        }

    @property
    def truth(self) -> Truth:
        """Ground truth of the GPUs."""
        return Truth(self.scenario.gpus, self.time_s)

    def time_s(self, t_ns: int | None = None) -> float:
        """Return the scenario time at a monotonic time, by default now. Unit: s."""
        at_ns = self.now_ns() if t_ns is None else t_ns
        return (at_ns - self.start_ns) / NS_PER_S * (1.0 if self.scenario.is_virtual else self.scenario.scale)

    def change(self) -> None:
        """Make the libraries read `scenario` again. Scenario time continues."""
        changed = self.folder / "scenario.new"
        changed.write_text(self.scenario.text(self.start_ns, self.start_wall_ns))
        changed.rename(self.folder / "scenario")
        self._generation += 1
        self._page[: GENERATION.size] = GENERATION.pack(self._generation)

    def set_load(self, load: float, gpu: int | None = None) -> None:
        """Change the load of a GPU, or of all GPUs if None, from now on, as a program on it does."""
        now_s = self.time_s()
        for index in range(len(self.scenario.gpus)) if gpu is None else [gpu]:
            before = self.scenario.gpus[index].load
            assert before.period_s == 0, "a load that repeats cannot be changed"
            self.scenario.set_gpu(index, load=Wave((*before.starts_s, now_s), (*before.values, load)))
        self.change()

    def advance(self, seconds: float) -> None:
        """Advance the virtual clock, and update the files of the sysfs tree."""
        assert self.scenario.is_virtual
        self._write_clock(self.now_ns() + round(seconds * NS_PER_S))
        self.sysfs.write()

    def now_ns(self) -> int:
        """Return the time in place of `time.monotonic_ns`. Calls with a latency also advance a virtual clock."""
        return CLOCK.unpack_from(self._page, CLOCK_AT)[0] if self.scenario.is_virtual else time.monotonic_ns()

    def calls(self) -> dict[str, int]:
        """Return the number of calls of each library function by all processes."""
        return {name.rstrip(b"\0").decode(): count for key, count, name in self._counts() if key and key < FIELD_MARK}

    def fields(self) -> dict[FieldCall, int]:
        """Return the number of requests of each field value, by field and scope."""
        marked = ((key - FIELD_MARK, count) for key, count, _ in self._counts() if key >= FIELD_MARK)
        return {(key >> 32, key & 0xFFFFFFFF): count for key, count in marked}

    def close(self) -> None:
        """Take the node down. The counts of calls remain readable."""
        self.sysfs.stop()
        page, self._page = self._page, self._page[:]
        page.close()

    def _counts(self) -> Iterator[tuple[int, int, bytes]]:
        return COUNT.iter_unpack(self._page[COUNTS_AT:])

    def _write_clock(self, t_ns: int) -> None:
        self._page[CLOCK_AT : CLOCK_AT + CLOCK.size] = CLOCK.pack(t_ns)


@contextmanager
def fake_node(scenario: Scenario) -> Iterator[FakeNode]:
    """Provide a node while the block runs, to this process and those started with `node.env`."""
    library = build_library(scenario.vendor)
    with tempfile.TemporaryDirectory(prefix="fake-node-") as folder:
        node = FakeNode(scenario, Path(folder), library)
        # The loader prefers a loaded library with the same soname. It has read LD_LIBRARY_PATH at process start.
        ctypes.CDLL(str(library))
        loaded = ctypes.CDLL(library.name)
        assert hasattr(loaded, "is_fake_node_library"), f"this process has loaded the machine's own {library.name}"
        variables = node.variables()
        before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        try:
            yield node
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
            node.close()
