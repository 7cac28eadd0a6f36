"""A job in thermal steady state: from what its GPUs do to their power, heat and clocks, and back to their speed.

Constants of stacks were fitted to steps at the clocks that those jobs had, so the profile of a step is taken from there
to the highest clock, and the closed loop says which clocks power, heat and faults leave. All ranks compute at the pace
of the slowest sound GPU; one that a fault makes slower has a factor of its own. Clocks make the step longer or shorter,
and what runs when sets what GPUs draw, so both are gone through in turn until neither changes.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from triplepoint.config.cluster import USUAL, ClusterConfig, ConditionsConfig
from triplepoint.config.gpu import GpuConfig
from triplepoint.errors import PointError
from triplepoint.simulate.costs import expected_maximum
from triplepoint.simulate.fabric import Fabric
from triplepoint.simulate.heat.alike import Followed, few_of
from triplepoint.simulate.heat.devices import equal_devices
from triplepoint.simulate.heat.from_rest import FromRest
from triplepoint.simulate.heat.loop import Trace, run, settle
from triplepoint.simulate.heat.machine import Machine, Profile
from triplepoint.simulate.heat.nodes import airflow_of, machine_of, power_of, usual_devices
from triplepoint.simulate.heat.parameters import read_heat
from triplepoint.simulate.heat.periodic import Periodic, num_periods
from triplepoint.simulate.job import Job
from triplepoint.simulate.power.gpu import Activity, Float, Int64, power_at_limit
from triplepoint.simulate.power.load import Load
from triplepoint.simulate.power.step import Place, bin_activity

_COARSE_STAGES = 4
"""Stages of a long pipeline that are followed on nodes nobody has described."""
_MOST_TURNS, _NEAR = 3, 0.02
"""Turns of clocks and steps, and how near a pace is to the one before for the step to be left as it was followed."""
_STEP_OF_SPEED = 0.005
"""Speeds of GPUs are told apart in steps of this: each different one makes a replica more to simulate."""
_WARMING_PERIODS = 64
"""Control periods of a step while a machine under a brake is followed through time."""
_SETTLED_K, _MOST_LEAPS = 0.2, 24
"""A machine is warm once a leap changes no temperature by more; sensors show whole degrees."""
_AS_LONG = 0.01
"""Share of the step by which the followed one may differ from the timeline: power differs by less."""
_LIKE_FLOW = 0.005
"""Share of the full flow by which fans may differ from what the mean power asks for: 0.1 K behind the first row."""
_HELD_S = 10.0
"""Where a brake holds clocks, steps of so long in all are followed together: heat lets go and grips again. Unit: s."""
_LIKE, _MOST_STEPS, _MOST_PERIODS = 0.001, 20, 16_000
"""Steps are alike once their mean power differs by less than this share; how many there may be until then, and how many
control periods they may have in all, but for the first two."""


AnyLoad = TypeVar("AnyLoad", bound=Load)


class Seats(NamedTuple):
    """Which devices of a machine do what.

    Attributes:
        places: Of each kind of rank; a kind more is of devices without one.
        kind: Of every device; shape (num_nodes, num_devices).
        weight: GPUs of the job that each device stands for; same shape.
    """

    places: list[Place]
    kind: Int64
    weight: Float

    @property
    def stage(self) -> Int64:
        """Pipeline stage of every device, -1 where it has no rank."""
        return np.array([*(stage for stage, _ in self.places), -1])[self.kind]


class Start(NamedTuple):
    """Where a job begins that is nearly another one: at what was found of that.

    Attributes:
        factor: On the computation of every rank, over that at the clock it was calibrated with.
        power_w: Mean power of every device; shape (num_nodes, num_devices). Unit: W.
        ceiling: Place in the table of clocks that heat holds every device under; same shape.
    """

    factor: Mapping[int, float]
    power_w: Float
    ceiling: Float


@dataclass(frozen=True, eq=False)
class Warm(Generic[AnyLoad]):
    """A job, warm.

    Attributes:
        load: What its GPUs do, with what clocks did to it.
        machine: The nodes.
        seats: Which devices do what.
        profile: What they do, as calibrated.
        trace: Its step, which repeats.
        num_alike: How many devices of a node each device of the machine stands for; shape (num_devices,).
        num_nics: Network adapters of a node.
        spread: Relative standard deviation of the resistance of parts that are equal in the trace.
        factor: Of every rank, time of its computation over that at the calibrated clock; empty without a cluster.
        is_steady: Whether the step before took the same power.
        fastest_s: Length of the step if all clocks were at their highest; NaN where it was not followed. Unit: s.
        from_rest: What its first steps are followed with that begin on nodes at rest; None without a cluster.
        start: Where jobs like it may begin; None without a cluster and under a power brake.
    """

    load: AnyLoad
    machine: Machine
    seats: Seats
    profile: Profile
    trace: Trace
    num_alike: Float
    num_nics: int
    spread: float = 0.0
    factor: Mapping[int, float] = field(default_factory=dict)
    is_steady: bool = True
    fastest_s: float = math.nan
    from_rest: FromRest | None = None
    start: Start | None = None

    @property
    def slower_ranks(self) -> list[int]:
        """Ranks that are slower than the pace of sound ones."""
        pace = min(self.factor.values(), default=1.0)
        return [rank for rank, factor in self.factor.items() if factor > pace]

    def hottest_c(self, number: int) -> Float:
        """Return temperatures of the hottest of so many parts that are equal in the trace; of its shape. Unit: degC."""
        inlet_c = self.machine.inlet_c[:, None]
        return np.asarray(inlet_c + (self.trace.temp_c - inlet_c) * (1.0 + self.spread * expected_maximum(number)))


def warm_up(
    load: AnyLoad,
    reload: Callable[[dict[int, float]], AnyLoad],
    cluster: ClusterConfig,
    config: Path,
    with_few_nodes: bool = False,
    clock_limit_mhz: Mapping[int, float] = MappingProxyType({}),
    start: Start | None = None,
) -> Warm[AnyLoad]:
    """Return a job under the conditions of its cluster, at the speed that its clocks leave it.

    Args:
        load: What its GPUs do, at the clocks it was calibrated with.
        reload: Simulates it once more, with these factors on the computation of ranks.
        cluster: Where it runs.
        config: Folder of the configuration.
        with_few_nodes: Whether nodes without faults may stand for others, see `few_of`: faster, not quite the same.
        clock_limit_mhz: Clock each pipeline stage is locked to, by stage; not under a power brake. Unit: MHz.
        start: Where to begin, with all nodes followed: takes a fraction of the turns, and sound ranks under faults keep
            its pace. None: at the clocks that the job was calibrated with.

    Raises:
        PointError: If GPUs cannot work under these conditions.
    """
    conditions = cluster.conditions.with_limits(dict(load.job.power_limits_w))
    shape = -(-load.job.num_gpus // cluster.gpus_per_node), cluster.gpus_per_node
    sound = conditions.without_faults

    def nodes_under(own: ConditionsConfig) -> Machine:
        machine = machine_of(own, load.job.gpu, shape, cluster.like or cluster.name, config, load.job.draw)
        return machine.of_nodes(np.array(load.job.nodes)) if load.job.nodes else machine

    machine, followed = nodes_under(sound), Followed.all(shape)
    if with_few_nodes and conditions == sound and not conditions.power_limits_w:
        followed = few_of(_seats(load, followed).stage, machine)
        machine = machine.of_nodes(followed.nodes)
    fastest_s = math.nan
    if start is None:
        first = _turn(load, machine, {}, followed)
        last = _together(first, reload)
        if conditions != sound:
            machine = nodes_under(conditions)
            last = _apart(_turn(last.load, machine, last.factor, followed), reload, min(last.factor.values()))
        if not with_few_nodes:
            highest = 1.0 / first.ready.calibrated
            fastest_s = reload(
                _of_stages(highest, load)
                if clock_limit_mhz
                else dict.fromkeys(range(load.job.num_gpus), float(highest.max()))
            ).length_s
    else:
        factor = dict(start.factor)
        last = _turn(reload(factor), nodes_under(conditions), factor, followed, start)
        pace = min(factor.values())
        last = _together(last, reload, pace) if conditions == sound else _apart(last, reload, pace)
    machine, start = last.ready.machine, last.start
    if clock_limit_mhz:
        limits = np.full(shape[0] * shape[1], machine.power.clocks.max_clock.value)
        for rank in range(load.job.num_gpus):
            limits[rank] = clock_limit_mhz.get(load.place(rank)[0], limits[rank])
        machine = replace(machine, clock_limit_mhz=limits.reshape(shape))
        last = _locked(_turn(last.load, machine, last.factor, followed), reload)
    elif not machine.braked.any():
        last = _as_long_as_timeline(last)
    steps_s = last.found.number * last.load.length_s
    loop_s = last.found.trace.period_s * len(last.found.trace.rate) / last.found.number
    trace = replace(last.found.trace, period_s=steps_s / len(last.found.trace.rate))
    _check_shutdown(trace, machine)
    num_nics = int(cluster.nics_per_node.value) if cluster.nics_per_node else cluster.gpus_per_node
    return Warm(
        last.load, machine, last.ready.seats, last.ready.profile, trace, np.ones(shape[1]), num_nics,
        factor=last.factor, is_steady=last.found.is_steady, fastest_s=fastest_s,
        from_rest=FromRest(machine, last.ready.high, loop_s, trace.power_w.mean(axis=0)), start=start,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Turn(Generic[AnyLoad]):
    """A load with these factors on the computation of ranks, and its step on a machine, whose fans know no load yet."""

    load: AnyLoad
    machine: Machine
    ready: "_Ready"
    found: "_Followed"
    factor: dict[int, float]
    followed: Followed
    is_near: bool = False

    @property
    def start(self) -> Start | None:
        """Where a turn may begin; None under a power brake."""
        ceiling = self.found.ceiling
        return None if ceiling is None else Start(self.factor, self.found.trace.power_w.mean(axis=0), ceiling)

    @property
    def ratio(self) -> Float:
        """Time of the computation of every device over that at the clock it was calibrated with."""
        trace = self.found.trace
        # By work done, so that the mean is the time that all of it takes.
        done = np.diff(trace.position_s, prepend=trace.position_s[0] - trace.rate[0] * trace.period_s)
        slowdown = np.average(trace.slowdown, axis=0, weights=done)
        return np.asarray(_of_computation(slowdown, self.ready.busy) / self.ready.calibrated)


def _turn(
    load: AnyLoad, machine: Machine, factor: dict[int, float], followed: Followed, start: Start | None = None
) -> _Turn[AnyLoad]:
    """Return the step of a load, with these factors on the computation of ranks, on the followed nodes of a machine.

    Powers and what heat holds are searched from `start`; None: from what power limits leave and free clocks.
    """
    times = np.ones(followed.shape[0] * followed.shape[1])
    times[list(factor)] = list(factor.values())
    ready = _ready(load, _seats(load, followed), machine, times.reshape(followed.shape)[followed.nodes])
    ceiling = None
    if start is not None:
        ready, ceiling = ready._replace(machine=machine.under_load(start.power_w), start_w=start.power_w), start.ceiling
    found = _follow(ready.machine, ready.high, ready.start_w, load.length_s, ceiling)
    # Fans follow what GPUs draw, which is less than what their limit leaves them.
    mean_w = found.trace.power_w.mean(axis=0)
    fanned = ready.machine.under_load(mean_w)
    if np.abs(fanned.fan_flow - ready.machine.fan_flow).max() > _LIKE_FLOW:
        ready = ready._replace(machine=fanned, start_w=mean_w)
        found = _follow(fanned, ready.high, mean_w, load.length_s, found.ceiling if start else None)
    return _Turn(load, machine, ready, found, factor, followed, start is not None)


def _together(
    first: _Turn[AnyLoad], reload: Callable[[dict[int, float]], AnyLoad], before: float = 1.0
) -> _Turn[AnyLoad]:
    """Return a job whose ranks all compute at the pace of the slowest clock.

    Args:
        first: The job at some pace.
        reload: Simulates it once more, with these factors on the computation of ranks.
        before: That pace, over the clocks it was calibrated with.
    """
    last = first
    for turn in range(1, _MOST_TURNS + 1):
        pace = float(last.ratio.max())
        factor = dict.fromkeys(range(first.load.job.num_gpus), pace)
        load = reload(factor)
        if turn == _MOST_TURNS or abs(pace / before - 1.0) < _NEAR:
            break
        last, before = _turn(load, first.machine, factor, first.followed, last.start if last.is_near else None), pace
    return replace(last, load=load, factor=factor)


def _apart(last: _Turn[AnyLoad], reload: Callable[[dict[int, float]], AnyLoad], pace: float) -> _Turn[AnyLoad]:
    """Return a job some of whose ranks are slower: clocks slow ranks, ranks the step, and what runs when sets clocks.

    Args:
        last: The job at the pace of sound ranks.
        reload: Simulates it once more, with these factors on the computation of ranks.
        pace: Factor on computation that the slowest GPU has without the faults.
    """
    for _ in range(_MOST_TURNS):
        factor = _factors(last.ratio, pace, last.load.job.num_gpus)
        if all(abs(last.factor[rank] / wanted - 1.0) < _STEP_OF_SPEED / 2 for rank, wanted in factor.items()):
            break
        last = _turn(reload(factor), last.machine, factor, last.followed, last.start if last.is_near else None)
    return last


def _locked(last: _Turn[AnyLoad], reload: Callable[[dict[int, float]], AnyLoad]) -> _Turn[AnyLoad]:
    """Return a job whose stages have clocks of their own: each computes at the pace of its slowest device.

    Args:
        last: The job with its clocks limited, at another pace.
        reload: Simulates it once more, with these factors on the computation of ranks.
    """
    for _ in range(_MOST_TURNS):
        factor = _of_stages(last.ratio, last.load)
        if all(abs(last.factor[rank] / wanted - 1.0) < _STEP_OF_SPEED / 2 for rank, wanted in factor.items()):
            break
        last = _turn(reload(factor), last.machine, factor, last.followed)
    return last


def _of_stages(ratio: Float, load: Load) -> dict[int, float]:
    """Return the factor on the computation of every rank, where a stage computes at the pace of its slowest device."""
    job = load.job
    stage = np.array([load.place(rank)[0] for rank in range(job.num_gpus)])
    pace = np.zeros(job.layout.pp)
    np.maximum.at(pace, stage, ratio.reshape(-1)[: job.num_gpus])
    return dict(enumerate(pace[stage].tolist()))


def _as_long_as_timeline(last: _Turn[AnyLoad]) -> _Turn[AnyLoad]:
    """Return a job whose followed step lasts as long as its timeline: the same work in other time draws other power.

    The loop shortens a step by what clocks do to computation alone; hosts and links that others wait for do not follow.
    """
    longer = last.load.length_s / (last.found.trace.period_s * len(last.found.trace.rate))
    if abs(longer - 1.0) < _AS_LONG:
        return last
    high = last.ready.high
    high = Profile(high.duration_s * longer, high.activity.at_rate(1.0 / longer), high.kind)
    ceiling = last.found.ceiling if last.is_near else None
    found = _follow(last.ready.machine, high, last.found.trace.power_w.mean(axis=0), last.load.length_s, ceiling)
    return replace(last, ready=last.ready._replace(high=high), found=found)


def warm_up_anywhere(load: AnyLoad, config: Path) -> Warm[AnyLoad]:
    """Return a job on usual nodes of its GPU type, in steps as long as calibrated.

    Parts are equal, a device stands for all that are cooled alike, and some stages of a long pipeline for the others.

    Args:
        load: What its GPUs do, as calibrated.
        config: Folder of the configuration.
    """
    job = load.job
    stages = np.unique(np.linspace(0, job.layout.pp - 1, min(job.layout.pp, _COARSE_STAGES)).round().astype(np.int64))
    machine, num_alike = _usual_nodes(job.gpu, job.fabric.gpus_per_node, len(stages), config)
    nearest = np.abs(np.arange(job.layout.pp)[:, None] - stages).argmin(axis=1)
    num_stages = np.bincount(nearest)
    kind = np.repeat(np.arange(len(stages))[:, None], len(num_alike), axis=1)
    weight = num_stages[:, None] * num_alike / (job.layout.pp * num_alike.sum()) * job.num_gpus
    seats = Seats([(stage, 0) for stage in stages.tolist()], kind, weight)
    ready = _ready(load, seats, machine)
    trace = Periodic(ready.machine, ready.high, load.length_s).settle(ready.start_w, load.length_s)
    in_node = num_alike * (min(job.fabric.gpus_per_node, job.num_gpus) / num_alike.sum())
    num_nics, spread = _num_nics(job.fabric), machine.heat.resistance_spread.value
    return Warm(load, ready.machine, seats, ready.profile, trace, in_node, num_nics, spread)


def slow_ranks(cluster: ClusterConfig, job: Job) -> dict[int, float]:
    """Return the factor on the time of computation of every rank on a GPU that its cluster calls slow."""
    place = {node: place for place, node in enumerate(job.nodes)}
    by_rank = {
        place.get(node, node) * cluster.gpus_per_node + gpu: speed for (node, gpu), speed in cluster.speeds.items()
    }
    return {rank: 1 / speed for rank, speed in by_rank.items() if rank < job.num_gpus}


def with_factors(slow: Mapping[int, float], factor: Mapping[int, float]) -> dict[int, float]:
    """Return the factors on the computation of ranks, of both causes."""
    if not slow:
        return dict(factor)
    return {rank: slow.get(rank, 1.0) * factor.get(rank, 1.0) for rank in sorted({*slow, *factor})}


@lru_cache(maxsize=64)
def _usual_nodes(gpu: GpuConfig, gpus_per_node: int, num_nodes: int, config: Path) -> tuple[Machine, Float]:
    """Return nodes of equal devices, one package for each row of the air, and how many devices each stands for."""
    num_devices = min(gpus_per_node, usual_devices(gpu, config))
    air = airflow_of(None, gpu, num_devices, config)
    package_of = {device: package for package in air.packages for device in package}
    packages, num_alike = list[list[int]](), list[float]()
    for row in air.rows:
        first, size = package_of[row[0]], sum(map(len, packages))
        packages.append([size + index for index in range(len(first))])
        num_alike += [len(row) / len(first)] * len(first)
    lean = air.model_copy(update={"rows": packages, "packages": packages})
    machine = Machine(
        power_of(USUAL, gpu, config), read_heat(gpu.name, config), lean, equal_devices(num_nodes, len(num_alike)),
        np.full(num_nodes, USUAL.inlet_temp_c), cooling=USUAL.coolant,
    )  # fmt: skip
    return machine, np.array(num_alike)


def _seats(load: Load, followed: Followed) -> Seats:
    """Return ranks in their order on nodes, of those that are followed."""
    index: dict[Place, int] = {}
    # Tensor and context parallel ranks stand side by side, and do the same.
    size, num_devices = load.job.mesh.ranks_per_replica, followed.shape[1]
    rank = followed.nodes[:, None] * num_devices + np.arange(num_devices)
    is_used = rank < load.job.num_gpus
    alike, which = np.unique(rank[is_used] // size, return_inverse=True)
    kinds = [index.setdefault(load.place(first * size), len(index)) for first in alike.tolist()]
    kind = np.full(rank.shape, len(index))
    kind[is_used] = np.array(kinds, dtype=np.int64)[which]
    return Seats(list(index), kind, np.asarray(is_used * followed.num_alike[:, None], dtype=float))


class _Ready(NamedTuple):
    """What devices do in a step, ready to be followed.

    Attributes:
        machine: The nodes, with fans as they run under this load.
        seats: Which devices do what.
        profile: What they do, as calibrated.
        high: The same as if clocks were at their highest.
        start_w: About the mean power of every device; shape (num_nodes, num_devices). Unit: W.
        busy: Share of the step at the highest clocks in which every device computes; same shape.
        calibrated: Time of computation at the calibrated clock over that at the highest; same shape.
    """

    machine: Machine
    seats: Seats
    profile: Profile
    high: Profile
    start_w: Float
    busy: Float
    calibrated: Float


def _ready(load: Load, seats: Seats, machine: Machine, factor: Float | float = 1.0) -> _Ready:
    """Return what devices do in a step.

    Args:
        load: The load.
        seats: Which devices do what.
        machine: The nodes.
        factor: On the time of computation at the calibrated clock; shape (num_nodes, num_devices).
    """
    profile, power = _profile(load, seats, machine), machine.power
    share = power.calibrated_clock.value / power.clocks.max_clock.value
    longest = np.ones(np.shape(profile.activity.awake)[1])
    np.maximum.at(longest, seats.kind, np.broadcast_to(factor, seats.kind.shape))
    high, computing = _at_highest_clocks(profile, share, longest, _polling(load, machine))
    _, watts = power_at_limit(power, high.activity, power.leakage_temperature.value)
    start_w = watts.mean(axis=0)[seats.kind]
    slower = 1.0 + np.asarray(high.activity.clock_bound) * (1.0 / share - 1.0)
    busy, slower = (np.average(each, axis=0, weights=high.duration_s)[seats.kind] for each in (computing, slower))
    return _Ready(machine.under_load(start_w), seats, profile, high, start_w, busy, _of_computation(slower, busy))


def _profile(load: Load, seats: Seats, machine: Machine) -> Profile:
    """Return what devices do in the control periods of a step; those without a rank do nothing."""
    number, num_places = num_periods(load.length_s, machine.period_s), len(seats.places)
    busy = bin_activity(load.pieces(seats.places), num_places, load.length_s, number, _polling(load, machine))
    columns = {part.name: np.asarray(getattr(busy, part.name)) for part in fields(busy)}
    if int(seats.kind.max()) == num_places:
        columns = {name: np.pad(column, ((0, 0), (0, 1))) for name, column in columns.items()}
    return Profile(np.full(number, load.length_s / number), Activity(**columns), seats.kind)


def _polling(load: Load, machine: Machine) -> float:
    """Return the share of the clock tree that waiting drives: a rank with others waits in a kernel that polls."""
    return machine.power.polling_share.value if load.job.num_gpus > 1 else 0.0


def _at_highest_clocks(profile: Profile, share: float, factor: Float, polling: float) -> tuple[Profile, Float]:
    """Return a step as if clocks were at their highest, and the share of it in which devices compute.

    Args:
        profile: With rates and times as they are at lower clocks.
        share: The calibrated clock over the highest.
        factor: Time of computation in the profile over that at the calibrated clock; shape (num_kinds,).
        polling: Share of the clock tree that a rank drives while it waits.

    Returns:
        The step, and shares of shape (num_bins, num_kinds).
    """
    awake, bound = np.asarray(profile.activity.awake), np.asarray(profile.activity.clock_bound)
    # Work is counted in time at the calibrated clock: so much of a bin would be computation there.
    computing = np.maximum((awake - polling) / (1.0 - polling), 0.0)
    own = 1.0 - (factor - 1.0) * computing - bound * (1.0 - share)
    computing = np.maximum(computing - bound * (1.0 - share), 0.0)
    # In each control period the device that gains most sets the time of all, but none computes for longer than that.
    together = np.maximum(own.min(axis=1, keepdims=True), computing.max(axis=1, keepdims=True))
    computing = computing / together
    awake = np.where(awake > 0.0, computing + polling * (1.0 - computing), 0.0)
    bound = np.minimum(bound * share / together, computing)
    faster = replace(profile.activity.at_rate(1.0 / together), awake=awake, clock_bound=bound)
    return Profile(profile.duration_s * together[:, 0], faster, profile.kind), computing


class _Followed(NamedTuple):
    """Steps that repeat, whether those before were so, how many they are, and under what clocks heat holds them."""

    trace: Trace
    is_steady: bool
    number: int = 1
    ceiling: Float | None = None


def _follow(
    machine: Machine, profile: Profile, start_w: Float, step_s: float, ceiling: Float | None = None
) -> _Followed:
    """Return a step of a warm job.

    Args:
        machine: The nodes.
        profile: Of a step at the highest clocks, a bin for each control period.
        start_w: About the mean power of every device. Unit: W.
        step_s: About the length of the step. Unit: s.
        ceiling: About the clocks that heat holds devices under, as `Start`; None: nothing is known.
    """
    if not machine.braked.any():
        # Where clocks are locked stages differ on purpose: the step, not its slowest device, says how long it takes.
        lasts_s = step_s if machine.clock_limit_mhz.size else None
        step = Periodic(machine, profile, step_s, ceiling)
        return _Followed(step.settle_held(start_w, lasts_s), is_steady=True, ceiling=step.ceiling)
    number = max(1, math.ceil(_HELD_S / profile.step_s))
    profile, step_s = _repeated(profile, number), number * step_s
    coarse = replace(machine, period_s=max(machine.period_s, profile.step_s / _WARMING_PERIODS))
    steady = settle(coarse, profile, _SETTLED_K, _MOST_LEAPS)
    fine = replace(machine, period_s=step_s / len(profile.duration_s))
    state = replace(steady.state, position_s=0.0)
    trace, is_like = run(fine, profile, steady.step_s, state), False
    for _ in range(max(1, min(_MOST_STEPS, _MOST_PERIODS // len(profile.duration_s)))):
        before, trace = trace, run(fine, profile, steady.step_s, state)
        is_like = abs(float(trace.power_w.mean() / before.power_w.mean()) - 1.0) < _LIKE
        if is_like:
            break
    return _Followed(replace(trace, repeats=True), is_like, number)


def _repeated(profile: Profile, number: int) -> Profile:
    """Return so many steps after one another."""
    columns = {part.name: getattr(profile.activity, part.name) for part in fields(profile.activity)}
    many = Activity(**{name: np.tile(np.asarray(column), (number, 1)) for name, column in columns.items()})
    return Profile(np.tile(profile.duration_s, number), many, profile.kind)


def _of_computation(slowdown: Float, busy: Float) -> Float:
    """Return the time that the computation of devices takes over that at the highest clock.

    Args:
        slowdown: The same of their whole step.
        busy: Share of the step at the highest clocks in which they compute; of its shape.
    """
    excess = (slowdown - 1.0) / np.maximum(busy, 1e-6)
    return np.asarray(1.0 + np.where(busy > 0.0, excess, 0.0))


def _factors(ratio: Float, pace: float, num_gpus: int) -> dict[int, float]:
    """Return the factor on the computation of every rank: the pace of sound ones, more in steps for slower ones."""
    steps = np.rint(np.maximum(ratio.reshape(-1)[:num_gpus] / pace - 1.0, 0.0) / _STEP_OF_SPEED)
    return {rank: pace * (1.0 + _STEP_OF_SPEED * float(steps[rank])) for rank in range(num_gpus)}


def _check_shutdown(trace: Trace, machine: Machine) -> None:
    # The mean: hardware cuts clocks within less than the control period that lets a die overshoot here.
    hottest = trace.temp_c.mean(axis=0)
    node, gpu = np.unravel_index(hottest.argmax(), hottest.shape)
    most_c = machine.heat.limits.shutdown_temperature.value
    if hottest[node, gpu] >= most_c:
        raise PointError(
            f"node{node}.gpu{gpu} comes to {hottest[node, gpu]:.0f} degC under the conditions of its cluster and shuts "
            f"down at {most_c:g} degC; no job runs on it, ease them"
        )


def _num_nics(fabric: Fabric) -> int:
    """Return how many network adapters a node has: one a GPU, unless GPUs share them."""
    for level in fabric.levels:
        if level.num_gpus > fabric.gpus_per_node and level.single:
            return max(1, round(fabric.gpus_per_node * level.bandwidth / level.single))
    return fabric.gpus_per_node
