"""Activity of the devices of a job in one step: as calibrated, and as if all clocks were at their highest."""

from dataclasses import fields, replace
from typing import NamedTuple

import numpy as np

from triplepoint.simulate.heat.alike import NodeSample
from triplepoint.simulate.heat.machine import Machine, Profile
from triplepoint.simulate.heat.periodic import num_periods
from triplepoint.simulate.power.gpu import Activity, Float, Int64, power_at_limit
from triplepoint.simulate.power.load import Load
from triplepoint.simulate.power.step import Place, bin_activity


class Seats(NamedTuple):
    """Ranks of the devices of a machine.

    Attributes:
        places: Stage and class of each kind of rank. Devices without a rank are one more kind, the last.
        kind: Kind of every device; shape (num_nodes, num_devices).
        weight: Number of GPUs of the job that each device represents; same shape.
    """

    places: list[Place]
    kind: Int64
    weight: Float

    @property
    def stage(self) -> Int64:
        """Pipeline stage of every device, -1 without a rank; shape (num_nodes, num_devices)."""
        return np.array([*(stage for stage, _ in self.places), -1])[self.kind]


class PreparedStep(NamedTuple):
    """Activity of a step, prepared for the simulation of power, heat and clocks.

    Attributes:
        machine: The nodes, with fans as they run under this load.
        seats: Ranks of the devices.
        profile: Activity at the clocks of the calibration.
        highest_profile: Activity as if all clocks were at their highest.
        start_w: Approximate mean power of every device; shape (num_nodes, num_devices). Unit: W.
        compute_share: Share of the step at the highest clocks in which every device computes; same shape.
        calibrated_slowdown: Computation time at the calibrated clock over that at the highest clock; same shape.
    """

    machine: Machine
    seats: Seats
    profile: Profile
    highest_profile: Profile
    start_w: Float
    compute_share: Float
    calibrated_slowdown: Float


def seats_of(load: Load, sample: NodeSample) -> Seats:
    """Return the ranks of the devices of sampled nodes; ranks fill the nodes in order."""
    kind_of: dict[Place, int] = {}
    # Tensor and context parallel ranks of a replica have adjacent numbers and equal work.
    size, num_devices = load.job.mesh.ranks_per_replica, sample.shape[1]
    rank = sample.nodes[:, None] * num_devices + np.arange(num_devices)
    is_used = rank < load.job.num_gpus
    groups, group_of_rank = np.unique(rank[is_used] // size, return_inverse=True)
    kinds = [kind_of.setdefault(load.place(group * size), len(kind_of)) for group in groups.tolist()]
    kind = np.full(rank.shape, len(kind_of))
    kind[is_used] = np.array(kinds, dtype=np.int64)[group_of_rank]
    return Seats(list(kind_of), kind, np.asarray(is_used * sample.num_alike[:, None], dtype=float))


def prepare_step_activity(load: Load, seats: Seats, machine: Machine, factor: Float | float = 1.0) -> PreparedStep:
    """Return the activity of a step at the calibrated and at the highest clocks, with a first estimate of power.

    Args:
        load: The load, with `factor` already applied.
        seats: Ranks of the devices.
        machine: The nodes.
        factor: Factor on the computation time at the calibrated clock; shape (num_nodes, num_devices).
    """
    profile, power = _calibrated_profile(load, seats, machine), machine.power
    clock_share = power.calibrated_clock.value / power.clocks.max_clock.value
    factor_of_kind = np.ones(np.shape(profile.activity.awake)[1])
    np.maximum.at(factor_of_kind, seats.kind, np.broadcast_to(factor, seats.kind.shape))
    polling = _polling_share(load, machine)
    highest_profile, computing = _at_highest_clocks(profile, clock_share, factor_of_kind, polling)
    _, limited_w = power_at_limit(power, highest_profile.activity, power.leakage_temperature.value)
    start_w = limited_w.mean(axis=0)[seats.kind]
    slowdown = 1.0 + np.asarray(highest_profile.activity.clock_bound) * (1.0 / clock_share - 1.0)
    compute_share, step_slowdown = (
        np.average(by_bin, axis=0, weights=highest_profile.duration_s)[seats.kind] for by_bin in (computing, slowdown)
    )
    return PreparedStep(
        machine.under_load(start_w), seats, profile, highest_profile, start_w, compute_share,
        compute_slowdown(step_slowdown, compute_share),
    )  # fmt: skip


def compute_slowdown(step_slowdown: Float, compute_share: Float) -> Float:
    """Return the computation time of devices over that at the highest clock; 1 for devices that do not compute.

    Args:
        step_slowdown: Time of their whole step over that at the highest clock.
        compute_share: Share of the step at the highest clocks in which they compute; same shape.
    """
    excess = (step_slowdown - 1.0) / np.maximum(compute_share, 1e-6)
    return np.asarray(1.0 + np.where(compute_share > 0.0, excess, 0.0))


def _calibrated_profile(load: Load, seats: Seats, machine: Machine) -> Profile:
    """Return the activity of devices by control period at the calibrated clocks; none for devices without a rank."""
    number, num_places = num_periods(load.length_s, machine.period_s), len(seats.places)
    polling = _polling_share(load, machine)
    activity = bin_activity(load.pieces(seats.places), num_places, load.length_s, number, polling)
    columns = {part.name: np.asarray(getattr(activity, part.name)) for part in fields(activity)}
    if int(seats.kind.max()) == num_places:
        columns = {name: np.pad(column, ((0, 0), (0, 1))) for name, column in columns.items()}
    return Profile(np.full(number, load.length_s / number), Activity(**columns), seats.kind)


def _polling_share(load: Load, machine: Machine) -> float:
    """Return the share of the clock tree that is active while a rank waits for others, in a kernel that polls."""
    return machine.power.polling_share.value if load.job.num_gpus > 1 else 0.0


def _at_highest_clocks(profile: Profile, clock_share: float, factor: Float, polling: float) -> tuple[Profile, Float]:
    """Return a step as if clocks were at their highest, and the share of each bin in which devices compute.

    Args:
        profile: Activity at lower clocks, with its rates and times.
        clock_share: The calibrated clock over the highest.
        factor: Computation time in the profile over that at the calibrated clock; shape (num_kinds,).
        polling: Share of the clock tree that is active while a rank waits.

    Returns:
        The profile of the step, and the shares; shape (num_bins, num_kinds).
    """
    awake, bound = np.asarray(profile.activity.awake), np.asarray(profile.activity.clock_bound)
    # `awake` is 1 during computation and `polling` during waiting. Work is counted as time at the calibrated clock.
    computing = np.maximum((awake - polling) / (1.0 - polling), 0.0)
    length = 1.0 - (factor - 1.0) * computing - bound * (1.0 - clock_share)
    computing = np.maximum(computing - bound * (1.0 - clock_share), 0.0)
    # In each control period the device that gains most sets the time of all, but no device computes longer than that.
    common_length = np.maximum(length.min(axis=1, keepdims=True), computing.max(axis=1, keepdims=True))
    computing = computing / common_length
    awake = np.where(awake > 0.0, computing + polling * (1.0 - computing), 0.0)
    bound = np.minimum(bound * clock_share / common_length, computing)
    faster = replace(profile.activity.at_rate(1.0 / common_length), awake=awake, clock_bound=bound)
    return Profile(profile.duration_s * common_length[:, 0], faster, profile.kind), computing
