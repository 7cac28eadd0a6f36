"""Manifest of a run, `raw/manifest.json`: nodes, outcome, interruptions, and gaps in the telemetry."""

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from triplepoint.config.base import Strict, read_json
from triplepoint.files import write_json
from triplepoint.redact import Redactor
from triplepoint.status import Status
from triplepoint.units import NS_PER_S

Origin = Literal["measured", "simulated"]
"""Whether numbers were measured or come from the simulator."""
SLOW = 3.0
"""Factor over the median step time from which a step is reported. Own choice: steps of a run differ by a few percent.
"""
HELD_SHARE = 0.5
"""Share of the measured time with clocks throttled for protection, from which a GPU counts as badly cooled or badly
powered. Our choice: half; hot positions of a healthy node differ by a few percent."""
USUAL_SHARE = 0.05
"""Highest throttled share of the median GPU; above it the room is hot and no single GPU is at fault. Our choice."""
NO_STEP = "no_measured_step"
"""Fact of a recorded run without measured steps; its rows of table `steps` describe the whole recording."""
_MOST_LISTED = 8
"""Most steps or interruptions that a note lists."""


class Evidence(Strict):
    """Evidence of a failure, or of another outcome than ok."""

    rank: int | None
    """First rank with the failure; None if it concerns the whole gang."""
    host: str
    """Host of that rank."""
    message: str
    """Message of the rank, or of the process that watched it."""
    log_tail: tuple[str, ...]
    """Last lines of that rank's log."""


class Suspect(Strict):
    """A GPU that is broken or far slower than its peers according to its telemetry."""

    rank: int
    """Global rank of the GPU."""
    host: str
    """Host of the GPU."""
    device: str
    """gpu0, gpu1, ... in the driver's order on its host."""
    uuid: str | None
    """Identity of the device, where it has one."""
    message: str
    """Measured values of the GPU and of its peers."""
    is_broken: bool
    """Whether it reported a hardware error; if not, it is only slow or throttled."""

    def __str__(self) -> str:
        """Return device, host and message in one line."""
        name = f"{self.device} ({self.uuid})" if self.uuid else self.device
        return f"{name} of {self.host}: {self.message}"


class Interruption(Strict):
    """A period in which a rank stood still: suspended, stopped, or with its whole host."""

    host: str
    """Host of the rank."""
    rank: int | None
    """The rank; None if everything on the host stood still."""
    duration_s: Annotated[float, Field(ge=0)]
    """Duration, a lower bound. Unit: s."""
    steps: tuple[int, ...]
    """Steps it overlaps; none if it was before, between or after steps."""
    measured_steps: tuple[int, ...]
    """The measured ones of these steps, which are omitted from times, power and energy."""

    def __str__(self) -> str:
        """Return host, rank, duration and steps in one line."""
        who = self.host if self.rank is None else f"rank {self.rank} on {self.host}"
        where = f"in {_steps(self.steps)}" if self.steps else "outside of steps"
        omitted = f"; measured {_steps(self.measured_steps)} left out" if self.measured_steps else ""
        return f"{who} stood still for {self.duration_s:.1f} s or more {where}{omitted}"


class SlowStep(Strict):
    """A measured step far longer than the others of its run."""

    step: int
    """Number of the step."""
    rank: int
    """Slowest rank."""
    time_s: float
    """Step time of that rank. Unit: s."""


class SlowSteps(Strict):
    """Measured steps that took far longer than the others for no known reason; they still count."""

    num: Annotated[int, Field(gt=0)]
    """Number of slow steps."""
    num_measured: int
    """Number of measured steps without interruption."""
    median_s: float
    """Median time of the measured steps without interruption. Unit: s."""
    longest: tuple[SlowStep, ...]
    """The longest few, longest first."""

    def __str__(self) -> str:
        """Return number, median and longest steps in one line."""
        longest = ", ".join(f"{slow.step} ({slow.time_s:.3g} s, rank {slow.rank})" for slow in self.longest)
        return (
            f"{self.num} of {self.num_measured} measured steps took over {SLOW:g} times the median of "
            f"{self.median_s:.3g} s, longest {longest}; they count"
        )


def _steps(numbers: tuple[int, ...]) -> str:
    """Return step numbers as text, such as `steps 3, 4`."""
    listed = ", ".join(map(str, numbers[:_MOST_LISTED])) + (", ..." if len(numbers) > _MOST_LISTED else "")
    return f"step {listed}" if len(numbers) == 1 else f"steps {listed}"


class Telemetry(Strict):
    """Summary of a node's telemetry: measured and missing columns."""

    period_s: float
    """Time between samples. Unit: s."""
    num_samples: int
    """Rows recorded."""
    measured: tuple[str, ...]
    """Columns with values."""
    absent: dict[str, str]
    """Columns without values, each with the reason."""
    stale: dict[str, int] = {}
    """Number of samples in which an energy counter had not changed for over a second, by counter: it was frozen."""


class Device(Strict):
    """The device of one rank."""

    rank: int
    """Global rank."""
    device: str
    """cpu, or gpu0, gpu1, ... in the driver's order on its host."""
    product: str | None
    """Product name from the driver or the processor; None for a GPU whose rank ended before it reported it."""
    uuid: str | None = None
    """Identity of the device, where it has one."""
    slot: int | None = None
    """Physical slot, where known."""


class Placement(Strict):
    """Resources that the scheduler granted on a node of the gang."""

    switches: str | None
    """Switches above the node and its name, from Slurm's topology: `spine.leaf1.h200-1`."""
    devices: tuple[str, ...] | None
    """Granted devices, by their numbers on the host; None if the scheduler named none."""
    cpus: str
    """Logical processors that the ranks may use: `0-3,8`."""
    adapters: dict[str, int | None]
    """InfiniBand adapters of the host, each with its NUMA node; None if it has none."""


class Job(Strict):
    """The scheduler's job that a launch ran in."""

    job_id: str
    """Job id."""
    state: str
    """Final state from Slurm; empty if not queried, for example because every agent reported success."""


class Clock(Strict):
    """Offset of a node's monotonic clock from the first node's, from round trips between their agents."""

    reference_ns: int
    """Time of this node's clock at which the offset holds. Unit: ns."""
    offset_ns: int
    """First node's clock minus this one's at that time. Unit: ns."""
    drift_ppm: float
    """Growth rate of the offset. Unit: ppm."""
    uncertainty_ns: Annotated[int, Field(ge=0)]
    """Uncertainty of the offset, plus or minus, from the first round trip to the last. Unit: ns."""
    least_delay_ns: int
    """Shortest round trip; half of it is the limit of the accuracy. Unit: ns."""
    num_bursts: int
    """Bursts of round trips: at the start, at the end, and between."""
    num_round_trips: int
    """Round trips in all bursts."""
    duration_s: float
    """From the first round trip to the last. Unit: s."""


class ZeusWindow(Strict):
    """Energy of one GPU over all steps of one kind, by Zeus and by the sampler."""

    kind: str
    """measured or profiled."""
    device: str
    """gpu0, gpu1, ... in the driver's order."""
    duration_s: float
    """Length of the window. Unit: s."""
    zeus_j: float
    """Energy by Zeus. Unit: J."""
    sampler_j: float | None
    """Energy by the sampler, interpolated between updates of the energy counter; None without updates around the
    window. Unit: J."""
    difference: float | None
    """Zeus's energy over the sampler's, less 1."""
    tolerance: float | None
    """Tolerance of the difference: 1 % plus the largest update of the counter over the energy, because Zeus does not
    interpolate between updates."""
    agrees: bool | None
    """Whether the difference is within the tolerance."""


class SamplerEnd(Strict):
    """Unexpected end of a node's sampler while the ranks trained."""

    t_ns: int
    """Time at which the end was noticed, on the node's monotonic clock. Unit: ns."""
    message: str
    """Exit status and last output of the sampler."""
    was_restarted: bool
    """Whether it was started again; the recording has a gap there."""


class NodeCheck(Strict):
    """Result of one check of a node by `triplepoint doctor`."""

    name: str
    """Name of the check."""
    status: Literal["ok", "warn", "fail"]
    """Result; warn if measurements may be misleading."""
    found: str
    """Value that the check found."""


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
    """Summary of the telemetry; None without telemetry."""
    telemetry_absent: str | None = None
    """Reason that there is no telemetry; None if there is, and in older manifests."""
    sampler_ends: tuple[SamplerEnd, ...] = ()
    """Unexpected ends of the sampler."""
    placement: Placement | None = None
    """Resources granted by the scheduler; None if nothing was launched."""
    checks: tuple[NodeCheck, ...] | None = None
    """Results of the doctor just before the ranks started; None if it did not check the node."""
    clock: Clock | None = None
    """Offset from the first node's clock; None on the first node, and if the agents could not compare the clocks."""
    clock_absent: str | None = None
    """Reason that the agents did not complete the clock comparison; None if they did, and on the first node."""
    zeus: tuple[ZeusWindow, ...] = ()
    """Energies measured by Zeus, compared with the sampler's."""
    zeus_absent: str | None = None
    """Reason that measurements of Zeus are missing; None if they are complete, and in simulated runs."""
    device_problems: tuple[str, ...] = ()
    """Problems with the devices: a rank's device that the sampler did not find, or a slot for no device or for two."""

    @property
    def gaps(self) -> tuple[str, ...]:
        """Gaps in the telemetry, a line for each."""
        lines = []
        for end in self.sampler_ends:
            after_s = (end.t_ns - self.monotonic_ns) / NS_PER_S
            restart = "started again" if end.was_restarted else "not started again"
            lines.append(f"the sampler of {self.host} ended after {after_s:.1f} s: {end.message}; {restart}")
        if self.telemetry_absent is not None:
            lines.append(f"{self.host} has no telemetry: {self.telemetry_absent}")
        return tuple(lines)


class Manifest(Strict):
    """The record of one launch."""

    run: str
    """Run id."""
    digest: str
    """Digest of the point that was measured."""
    status: Status
    """Outcome."""
    evidence: Evidence | None
    """Evidence of the outcome; None if ok."""
    origin: Origin
    """Whether the run was measured or simulated."""
    engine: str
    """Engine that ran the point."""
    versions: dict[str, str]
    """Versions of all software that could change the result."""
    git_commit: str | None
    """Commit of the project; None outside a repository."""
    git_dirty: bool | None
    """Whether tracked files differed from that commit; None outside a repository."""
    seed: int | None
    """Seed of weights and data; None where not known."""
    started_at: str
    """Start, UTC, ISO 8601."""
    ended_at: str
    """End, UTC, ISO 8601."""
    duration_s: Annotated[float, Field(ge=0)]
    """Time from the start of an agent to its report, by its host's monotonic clock; the longest of all nodes. Unit: s.
    """
    nodes: tuple[Node, ...]
    """Nodes of the gang."""
    suspects: tuple[Suspect, ...] = ()
    """GPUs that are broken or slow according to their telemetry, whatever the outcome."""
    interruptions: tuple[Interruption, ...] = ()
    """Periods in which ranks stood still."""
    slow_steps: SlowSteps | None = None
    """Measured steps that took far longer than the others for no known reason; None without any."""
    job: Job | None = None
    """Job of the scheduler; None without a scheduler."""
    facts: dict[str, int | float | str | bool | None]
    """Facts that the engine reports: number of parameters, collective backend, and the like."""

    @property
    def is_result(self) -> bool:
        """Whether the outcome is a result to keep, not a failure to retry."""
        return self.status.is_result

    @property
    def interrupted_steps(self) -> frozenset[int]:
        """Measured steps in which a rank stood still, which all statistics omit."""
        return frozenset(step for interruption in self.interruptions for step in interruption.measured_steps)

    @property
    def step_notes(self) -> list[str]:
        """Notes about single steps, a line each."""
        lines = [str(interruption) for interruption in self.interruptions[:_MOST_LISTED]]
        if len(self.interruptions) > _MOST_LISTED:
            lines.append(f"{len(self.interruptions) - _MOST_LISTED} more interruptions")
        lines += [str(self.facts[NO_STEP])] if NO_STEP in self.facts else []
        return lines + ([str(self.slow_steps)] if self.slow_steps else [])

    def on_first_clock(self, node: Node, t_ns: np.ndarray) -> np.ndarray:
        """Convert times of one node's monotonic clock to the first node's.

        Args:
            node: The node.
            t_ns: Times of any shape. Unit: ns.
        """
        first = self.nodes[0]
        if node.clock is None:
            # Each node read its monotonic and wall clock at one instant; this is as exact as the wall clocks agree.
            return np.asarray(t_ns + ((node.wall_ns - node.monotonic_ns) - (first.wall_ns - first.monotonic_ns)))
        drift_ns = (t_ns - node.clock.reference_ns) * (node.clock.drift_ppm * 1e-6)
        return np.asarray(t_ns + node.clock.offset_ns + np.rint(drift_ns).astype(np.int64))


def read_manifest(path: Path) -> Manifest:
    """Return the manifest in a file.

    Raises:
        UserError: If it is missing or damaged.
    """
    return read_json(Manifest, path, "launch the run, again if it did not finish")


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write a manifest atomically, without secrets, because reports and exports share it."""
    write_json(path, Redactor().content(manifest.model_dump(mode="json")))
