"""Manifest of a run, `raw/manifest.json`: where it ran, how it ended, and what its telemetry lacks."""

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from triplepoint.config.base import Strict, read_json
from triplepoint.files import write_json
from triplepoint.redact import Redactor
from triplepoint.status import Status
from triplepoint.units import NS_PER_S

SLOW = 3.0
"""Times the median from which a measured step is named. Our choice: steps of one run differ by a few percent."""
NO_STEP = "no_measured_step"
"""Fact of a recorded run without a measured step: its rows of steps hold the whole recording instead."""
_LISTED = 8
"""Most steps or interruptions that are named one by one."""


class Evidence(Strict):
    """Why a run is not ok."""

    rank: int | None
    """Rank it was seen on first; None when it concerns the whole gang."""
    host: str
    """Host of that rank."""
    message: str
    """What the rank, or the process that watched it, said."""
    log_tail: tuple[str, ...]
    """Last lines of that rank's log."""


class Suspect(Strict):
    """A GPU that its telemetry shows to be broken, or far slower than its peers."""

    rank: int
    """Global rank it served."""
    host: str
    """Its host."""
    device: str
    """gpu0, gpu1, ... in the driver's order on its host."""
    uuid: str | None
    """Identity of the device, where it has one."""
    message: str
    """What was measured, of it and of its peers."""
    is_broken: bool
    """Whether it reported an error of its hardware; else it is only slow or throttled."""

    def __str__(self) -> str:
        """Return one line that names it."""
        named = f"{self.device} ({self.uuid})" if self.uuid else self.device
        return f"{named} of {self.host}: {self.message}"


class Interruption(Strict):
    """Time in which ranks stood still: suspended, stopped, or with their whole host."""

    host: str
    """Their host."""
    rank: int | None
    """The rank; None where everything on the host stood still."""
    duration_s: Annotated[float, Field(ge=0)]
    """At least so long. Unit: s."""
    steps: tuple[int, ...]
    """Steps it fell into; none where it was before, between or after steps."""
    measured_steps: tuple[int, ...]
    """Those of them that are measured steps: they are left out of times, power and energy."""

    def __str__(self) -> str:
        """Return one line that names it."""
        who = self.host if self.rank is None else f"rank {self.rank} on {self.host}"
        where = f"in {_steps(self.steps)}" if self.steps else "outside of steps"
        left_out = f"; measured {_steps(self.measured_steps)} left out" if self.measured_steps else ""
        return f"{who} stood still for {self.duration_s:.1f} s or more {where}{left_out}"


class SlowStep(Strict):
    """A measured step far longer than the others of its run."""

    step: int
    """Its number."""
    rank: int
    """Rank that took longest."""
    time_s: float
    """Of that rank. Unit: s."""


class SlowSteps(Strict):
    """Measured steps of a run that took far longer than the others, with no reason seen; they count."""

    num: Annotated[int, Field(gt=0)]
    """How many."""
    num_measured: int
    """Of how many that were not interrupted."""
    median_s: float
    """Of those. Unit: s."""
    longest: tuple[SlowStep, ...]
    """The longest few, the longest first."""

    def __str__(self) -> str:
        """Return one line that names them."""
        named = ", ".join(f"{found.step} ({found.time_s:.3g} s, rank {found.rank})" for found in self.longest)
        return (
            f"{self.num} of {self.num_measured} measured steps took over {SLOW:g} times the median of "
            f"{self.median_s:.3g} s, longest {named}; they count"
        )


def _steps(numbers: tuple[int, ...]) -> str:
    listed = ", ".join(map(str, numbers[:_LISTED])) + (", ..." if len(numbers) > _LISTED else "")
    return f"step {listed}" if len(numbers) == 1 else f"steps {listed}"


class Telemetry(Strict):
    """What a node's sampler measured, and what it could not."""

    period_s: float
    """Time between samples. Unit: s."""
    num_samples: int
    """Rows recorded."""
    measured: tuple[str, ...]
    """Columns with values."""
    absent: dict[str, str]
    """Columns without values, each with the reason."""
    stale: dict[str, int] = {}
    """Samples of each energy counter that had stood still for over a second: such a counter is frozen."""


class Device(Strict):
    """The device of one rank."""

    rank: int
    """Global rank."""
    device: str
    """cpu, or gpu0, gpu1, ... in the driver's order on its host."""
    product: str | None
    """Product name as the driver or the processor gives it; None for a GPU whose rank did not get to say."""
    uuid: str | None = None
    """Identity of the device, where it has one."""
    slot: int | None = None
    """Physical slot, where known."""


class Placement(Strict):
    """What the scheduler gave to a node of the gang."""

    switches: str | None
    """Switches above the node and its name, as Slurm's topology gives them: `spine.leaf1.h200-1`."""
    devices: tuple[str, ...] | None
    """Devices granted, by their numbers on the host; None where the scheduler named none."""
    cpus: str
    """Logical processors the ranks may use: `0-3,8`."""
    adapters: dict[str, int | None]
    """InfiniBand adapters of the host, each with its NUMA node, None where it has none."""


class Job(Strict):
    """The scheduler's job a launch ran in."""

    job_id: str
    """Its number."""
    state: str
    """What Slurm said it ended as; empty where it was not asked, as when every agent had reported success."""


class Clock(Strict):
    """Where a node's monotonic clock stands against the first node's, from round trips between their agents."""

    reference_ns: int
    """Time of this node's clock at which the offset holds. Unit: ns."""
    offset_ns: int
    """First node's clock minus this one's at that time. Unit: ns."""
    drift_ppm: float
    """What the offset grows by. Unit: ppm."""
    uncertainty_ns: Annotated[int, Field(ge=0)]
    """Uncertainty of the offset, either way, from the first round trip to the last. Unit: ns."""
    least_delay_ns: int
    """Shortest round trip; half of it is what no round trip can tell. Unit: ns."""
    num_bursts: int
    """Bursts of round trips: one at the start, one at the end, and those between."""
    num_round_trips: int
    """Round trips made."""
    duration_s: float
    """From the first round trip to the last. Unit: s."""


class ZeusWindow(Strict):
    """Energy of one GPU while one kind of steps was made, by Zeus and by the sampler."""

    kind: str
    """measured or profiled."""
    device: str
    """gpu0, gpu1, ... in the driver's order."""
    duration_s: float
    """Length of the window. Unit: s."""
    zeus_j: float
    """By Zeus. Unit: J."""
    sampler_j: float | None
    """By the sampler, from the moves of the energy counter; None where it has none around the window. Unit: J."""
    difference: float | None
    """Zeus's over the sampler's, less 1."""
    tolerance: float | None
    """1 %, and what the largest update of the counter is of the whole: Zeus takes the counter as it stands."""
    agrees: bool | None
    """Whether the difference is within that."""


class SamplerEnd(Strict):
    """That a node's sampler ended while the ranks trained."""

    t_ns: int
    """When that was seen, on the node's monotonic clock. Unit: ns."""
    message: str
    """How it ended, and the last it said."""
    was_restarted: bool
    """Whether it was started again; the recording has a gap there."""


class NodeCheck(Strict):
    """What `triplepoint doctor` found of a node in one respect."""

    name: str
    """What was looked at."""
    status: Literal["ok", "warn", "fail"]
    """Whether it is as it should be; warn where a measurement may not be what it seems."""
    found: str
    """What is there."""


class Node(Strict):
    """One node of the gang."""

    node: int
    """Index within the run."""
    host: str
    """Host name."""
    monotonic_ns: int
    """Monotonic clock at one instant. Unit: ns."""
    wall_ns: int
    """Wall clock (Unix) at the same instant; the pair aligns nodes. Unit: ns."""
    num_cores: int | None
    """Logical processors; None where not known."""
    memory_bytes: int | None
    """Host memory; None where not known."""
    devices: tuple[Device, ...]
    """Devices of the node's ranks."""
    telemetry: Telemetry | None
    """The sampler's account; None if it left none."""
    telemetry_absent: str | None = None
    """Why it left none; None where it did, and in manifests written before this was."""
    sampler_ends: tuple[SamplerEnd, ...] = ()
    """Each time the sampler ended by itself."""
    placement: Placement | None = None
    """What it was given; None where nothing was launched."""
    checks: tuple[NodeCheck, ...] | None = None
    """What the doctor read of it just before the ranks started; None where it did not."""
    clock: Clock | None = None
    """Its clock against the first node's; None on the first node and where the agents could not compare them."""
    clock_absent: str | None = None
    """Why they could not, or not to the end; None where they could, and on the first node."""
    zeus: tuple[ZeusWindow, ...] = ()
    """What Zeus measured in the same time, and how it compares."""
    zeus_absent: str | None = None
    """Why Zeus measured nothing, or not all; None where it did, and in simulated runs."""
    device_problems: tuple[str, ...] = ()
    """What could not be told of its devices: one given to a rank that the sampler did not find, a slot named for none
    or for two."""

    @property
    def gaps(self) -> tuple[str, ...]:
        """What is missing of its telemetry, a line for each."""
        found = []
        for end in self.sampler_ends:
            after_s = (end.t_ns - self.monotonic_ns) / NS_PER_S
            then = "started again" if end.was_restarted else "not started again"
            found.append(f"the sampler of {self.host} ended after {after_s:.1f} s: {end.message}; {then}")
        if self.telemetry_absent is not None:
            found.append(f"{self.host} has no telemetry: {self.telemetry_absent}")
        return tuple(found)


class Manifest(Strict):
    """The record of one launch."""

    run: str
    """Run id."""
    digest: str
    """Digest of the point that was measured."""
    status: Status
    """Outcome."""
    evidence: Evidence | None
    """Why not ok; None when ok."""
    origin: Literal["measured", "simulated"]
    """Whether devices were measured or a model was run."""
    engine: str
    """What trained."""
    versions: dict[str, str]
    """Versions of everything that could change the result."""
    git_commit: str | None
    """Commit of the project; None outside a repository."""
    git_dirty: bool | None
    """Whether tracked files differed from that commit; None outside a repository."""
    seed: int | None
    """Seed of weights and data; None where not known."""
    started_at: str
    """UTC, ISO 8601."""
    ended_at: str
    """UTC, ISO 8601."""
    duration_s: Annotated[float, Field(ge=0)]
    """From the first agent's start to its report, by its host's monotonic clock; the longest of all nodes. Unit: s."""
    nodes: tuple[Node, ...]
    """Nodes that took part."""
    suspects: tuple[Suspect, ...] = ()
    """GPUs that its telemetry shows to be broken or slow, whatever the outcome."""
    interruptions: tuple[Interruption, ...] = ()
    """What stood still meanwhile."""
    slow_steps: SlowSteps | None = None
    """Measured steps that took far longer than the others, with no reason seen; None where none did."""
    job: Job | None = None
    """The job it ran in; None without a scheduler."""
    facts: dict[str, int | float | str | bool | None]
    """What the engine says of itself: number of parameters, collective backend, and the like."""

    @property
    def is_result(self) -> bool:
        """Whether the outcome is a result to keep, not a failure to try again."""
        return self.status.is_result

    @property
    def interrupted_steps(self) -> frozenset[int]:
        """Measured steps in which a rank stood still: no statistics are made of them."""
        return frozenset(step for found in self.interruptions for step in found.measured_steps)

    @property
    def step_notes(self) -> list[str]:
        """What is to be said of single steps, a line each."""
        lines = [str(found) for found in self.interruptions[:_LISTED]]
        if len(self.interruptions) > _LISTED:
            lines.append(f"{len(self.interruptions) - _LISTED} more interruptions")
        lines += [str(self.facts[NO_STEP])] if NO_STEP in self.facts else []
        return lines + ([str(self.slow_steps)] if self.slow_steps else [])

    def on_first_clock(self, node: Node, t_ns: np.ndarray) -> np.ndarray:
        """Return times of one node's monotonic clock as times of the first node's.

        Args:
            node: The node.
            t_ns: Times of any shape. Unit: ns.
        """
        first = self.nodes[0]
        if node.clock is None:
            # Both clocks were read at one instant on each node: as good as the wall clocks agree.
            return np.asarray(t_ns + ((node.wall_ns - node.monotonic_ns) - (first.wall_ns - first.monotonic_ns)))
        grown_ns = (t_ns - node.clock.reference_ns) * (node.clock.drift_ppm * 1e-6)
        return np.asarray(t_ns + node.clock.offset_ns + np.rint(grown_ns).astype(np.int64))


def read_manifest(path: Path) -> Manifest:
    """Return the manifest in `path`.

    Raises:
        UserError: If it is missing or damaged.
    """
    return read_json(Manifest, path, "launch the run, again if it did not finish")


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write `manifest` to `path` in one piece, without secrets: it is shared, in reports and exports."""
    write_json(path, Redactor().content(manifest.model_dump(mode="json")))
