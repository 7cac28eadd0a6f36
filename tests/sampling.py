"""Runs the real sampler on a fake node in virtual time, so that an hour takes as long as its reads take to compute."""

import ctypes
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import triplepoint.telemetry
from tests.fakes.node import FakeNode, fake_node
from tests.fakes.scenario import Scenario, Vendor
from tests.fakes.wave import Wave
from triplepoint.recording import Recording, read_recording
from triplepoint.telemetry import sensor
from triplepoint.telemetry.sampler import open_lanes, sample
from triplepoint.telemetry.sensor import address_of

S = 1_000_000_000
DEVICES = {Vendor.NVIDIA: "cuda", Vendor.AMD: "rocm"}


class VirtualTime:
    """Replacement of the module `time` in the sampler. Sleeping advances the clock of the node."""

    def __init__(self, node: FakeNode) -> None:
        self._node = node

    def monotonic_ns(self) -> int:
        return self._node.now_ns()

    def monotonic(self) -> float:
        return self._node.now_ns() / S

    def sleep(self, seconds: float) -> None:
        self._node.advance(seconds)


@dataclass
class StopAfter:
    """Stop request of the sampler at a time; calls events at their times.

    Attributes:
        node: The node.
        end_ns: Time of the request. Unit: ns.
        events: Scenario time in s, and function to call then, in order of time.
    """

    node: FakeNode
    end_ns: int
    events: list[tuple[float, Callable[[FakeNode], None]]]

    @property
    def asked(self) -> bool:
        while self.events and self.node.time_s() >= self.events[0][0]:
            self.events.pop(0)[1](self.node)
        return self.node.now_ns() >= self.end_ns


@contextmanager
def virtual_time(node: FakeNode) -> Iterator[None]:
    """Make every module of the sampler use the clock of the node."""
    clock = VirtualTime(node)
    names = [module.name for module in pkgutil.iter_modules(triplepoint.telemetry.__path__)]
    modules = [importlib.import_module(f"triplepoint.telemetry.{name}") for name in names]
    with ExitStack() as patches:
        for module in modules:
            if hasattr(module, "time"):
                patches.enter_context(mock.patch.object(module, "time", clock))
        now_ns = address_of(ctypes.CDLL(str(node.library)).fake_node_now_ns)
        patches.enter_context(mock.patch.object(sensor, "CLOCK", now_ns))
        yield


@dataclass
class Sampled:
    """Recording of the sampler, and the node that it sampled."""

    node: FakeNode
    recording: Recording

    def rows(self, column: str, gpu: int = 0, device: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return times in ns and values of a column of a device, by default of a GPU, without missing values."""
        table = self.recording.samples.select(["t_ns", "device", column]).drop_null()
        is_of_device = np.array(table["device"].to_pylist()) == (device or f"gpu{gpu}")
        return table["t_ns"].to_numpy()[is_of_device], table[column].to_numpy(zero_copy_only=False)[is_of_device]

    def change(self, column: str, gpu: int = 0, device: str | None = None) -> tuple[float, int, int]:
        """Return the increase of a counter between its first and last sample, and the times of both in ns."""
        t_ns, values = self.rows(column, gpu, device)
        return float(values[-1] - values[0]), int(t_ns[0]), int(t_ns[-1])

    def fact(self, gpu: int) -> dict[str, Any]:
        """Return the facts of a GPU in the recording."""
        return next(fact for fact in self.recording.facts["gpus"] if fact["device"] == f"gpu{gpu}")


def record(
    scenario: Scenario,
    folder: Path,
    seconds: float = 10.0,
    fast_hz: float = 20.0,
    slow_hz: float = 10.0,
    events: list[tuple[float, Callable[[FakeNode], None]]] | None = None,
) -> Sampled:
    """Sample a scenario from its start in virtual time.

    Args:
        scenario: The node.
        folder: Folder for the recording.
        seconds: Duration. Unit: s.
        fast_hz: Rate of the fast lane. Unit: Hz.
        slow_hz: Rate of the slow lane. Unit: Hz.
        events: Scenario time in s, and function to call then, in order of time.
    """
    scenario.is_virtual = True
    with fake_node(scenario) as node, virtual_time(node):
        out = folder / "node0.arrow"
        lanes = open_lanes(out, DEVICES[scenario.vendor], 1 / slow_hz, 1 / fast_hz)
        try:
            sample(lanes, StopAfter(node, node.now_ns() + round(seconds * S), list(events or [])))  # type: ignore[arg-type]
        finally:
            for lane in lanes:
                lane.close()
        return Sampled(node, read_recording(out))


def aligned(wave: Wave) -> dict[str, Any]:
    """Return fields of a GPU with this load, whose energy counter is updated every ms and thus is nearly exact."""
    return {"load": wave, "energy_period_s": 0.001, "energy_phase_s": 0.0}
