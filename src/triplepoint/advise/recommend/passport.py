"""Slot passport: cooling, leakage and speed of every GPU of a cluster, from the telemetry of a run.

Parameters that all nodes share (inlet, resistances, preheat, fans) are fitted as in `triplepoint calibrate --heat`. The
resistance of a slot is the temperature of its die above the air at its sink, divided by its power. Leakage follows from
clocks, once the job is simulated (`power_limits.leakage_of`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from triplepoint.calibrate.heat import LEAST_GAP_K, starting_machine
from triplepoint.calibrate.heat_runs import Observed, Runs, SharedPackageError, read_runs
from triplepoint.calibrate.heat_search import BETWEEN, NOISE_K, search, values_of, with_numbers
from triplepoint.compare.sides import parsed_run
from triplepoint.config.base import Strict
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.cluster import ClusterConfig
from triplepoint.config.plan import read_planned_run
from triplepoint.errors import UserError
from triplepoint.manifest import Manifest, read_manifest
from triplepoint.metrics import Z90
from triplepoint.simulate.heat.machine import Machine
from triplepoint.simulate.heat.nodes import machine_of
from triplepoint.simulate.heat.parameters import LEARNED
from triplepoint.simulate.power.gpu import Float
from triplepoint.tables import RANKS, TELEMETRY

BAD_CONTACT = 1.25
"""Contact from which a slot counts as faulty: five standard deviations of 4.5 % (`resistance_spread`)."""
_DIFFERENCE = 1e-3
"""Step of the shared parameters for numerical derivatives."""
_UNITS = ("degC", "K/W", "K/W", "K/W", "W", "1")
"""Units of the shared parameters `LEARNED`."""


class Known(Strict):
    """A number with its 90 % interval."""

    value: float
    """Best estimate."""
    lo: float
    """Lower end."""
    hi: float
    """Upper end."""
    unit: str
    """Unit, 1 for ratios."""


class Slot(Strict):
    """A position in a node and the GPU in it."""

    host: str
    """Host; node0, node1, ... if hosts share a name or the run is simulated."""
    node: int
    """Index of the node within the run."""
    device: int
    """Number of the device on its host."""
    uuid: str | None
    """UUID of the GPU; None if unknown."""
    temp_c: float
    """Mean temperature in balance. Unit: degC."""
    power_w: float
    """Mean power in balance. Unit: W."""
    clock_mhz: float | None
    """Mean clock in measured steps; None where not recorded. Unit: MHz."""
    preheat_k: Known
    """Temperature of the air at the sink above the inlet of the node, at this load."""
    resistance: Known
    """Thermal resistance: temperature of the die above the air at its sink, divided by power."""
    contact: Known
    """Thermal resistance from die to sink over that of its GPU type. Blocked air at the slot counts as contact, because
    temperatures at one load do not distinguish them."""
    leakage: float | None = None
    """Leakage over that of a typical part, with which the GPU has its measured clock; None if a clock is unknown."""
    compute_excess: float | None
    """Computation time of its rank over the median of its peers, minus 1, from traces; None without traces or peers."""

    @property
    def name(self) -> str:
        """Name as in cluster files, with the index of the node within the run."""
        return f"node{self.node}.gpu{self.device}"


class Passport(Strict):
    """State of the slots of a cluster in one run."""

    cluster: str
    """Name of the cluster."""
    run: str
    """Run id."""
    started_at: str
    """Start of the run, UTC, ISO 8601."""
    shared: dict[str, Known]
    """Parameters of all nodes by name: inlet, resistances, preheat and fans."""
    contact_spread: float
    """Typical standard deviation of the logarithm of contacts, for the GPU type."""
    slots: tuple[Slot, ...]
    """Every GPU of the run, by node and device."""
    is_simulated: bool = False
    """Whether the run was simulated, so that the passport describes no real GPU."""


@dataclass(frozen=True, eq=False)
class Learned:
    """A passport and the data behind it.

    Attributes:
        passport: The passport.
        runs: Power and temperatures of the run.
        manifest: Manifest of the run; None for a kept passport.
        notes: What could not be determined, and why.
    """

    passport: Passport
    runs: Runs
    manifest: Manifest | None
    notes: tuple[str, ...] = ()


class _Fit(NamedTuple):
    """Result of the search for the shared parameters.

    Attributes:
        start: The nodes as declared.
        at: Parameters at the end of the search, as `heat_search.search` has them.
        covariance: Covariance of these parameters.
    """

    start: Machine
    at: Float
    covariance: Float


def learn(folder: Path, config: Path) -> Learned:
    """Return the passport of a run's slots.

    Args:
        folder: `results/runs/<run>`; `ranks.parquet` is read if it exists.
        config: Folder of the configuration.

    Raises:
        UserError: If a file is missing, or power or temperature was not measured.
    """
    try:
        manifest = read_manifest(folder / "raw" / "manifest.json")
        with parsed_run(folder) as parsed:
            runs, clocks = read_runs([parsed], config), _clocks(parsed)
    except UserError as error:
        message = str(error).replace("calibrate --heat: ", "recommend: ", 1)
        if isinstance(error, SharedPackageError):
            name = read_planned_run(folder / "point.json").point.cluster.name
            message = f"{message}; without a run it works: 'triplepoint recommend {name} --set model=...'"
        raise UserError(message) from None
    start = starting_machine(runs)
    at, covariance, _ = search(start, runs.observed)
    fit = _Fit(start, at, covariance)
    passport = Passport(
        cluster=runs.cluster.name, run=manifest.run, started_at=manifest.started_at, shared=_shared(fit),
        contact_spread=start.heat.resistance_spread.value,
        slots=tuple(_slots(fit, runs.observed[0], manifest, clocks, _excess(folder))),
        is_simulated=manifest.origin == "simulated",
    )  # fmt: skip
    return Learned(passport, runs, manifest, _notes(start, runs, passport))


def _notes(start: Machine, runs: Runs, passport: Passport) -> tuple[str, ...]:
    """Return a note if rows of GPUs are assumed in one node, where a front GPU with bad contact looks like a rear one.

    A GPU that is far hotter than all sound ones has bad contact in any row.
    """
    if start.shape[0] > 1 or runs.is_airflow_known or len(start.airflow.rows) < 2:
        return ()
    described, taken = runs.machine.airflow.rows, start.airflow.rows
    unsure = {*taken[-1]} ^ {*described[-1]}
    sound_c = [slot.temp_c for slot in passport.slots if slot.contact.value < BAD_CONTACT]
    hottest_c = max(sound_c, default=0.0) + LEAST_GAP_K
    unsure |= {slot.device for slot in passport.slots if slot.contact.value >= BAD_CONTACT and slot.temp_c <= hottest_c}
    if not unsure:
        return ()
    names = ", ".join(f"gpu{device}" for device in sorted(unsure))
    return (
        f"The file of cluster {runs.cluster.name} names no airflow, and in one node a front GPU with bad contact looks "
        f"like a rear one. Whether {names} has bad contact or stands in the rear is therefore not known; name "
        "conditions.airflow.",
    )


def of_passport(passport: Passport, cluster: ClusterConfig, config: Path, num_nodes: int) -> Learned:
    """Return a kept passport for a job on the first nodes of a cluster.

    Args:
        passport: The passport.
        cluster: The cluster.
        config: Folder of the configuration.
        num_nodes: Number of nodes of the job.

    Raises:
        UserError: If the nodes cannot have such conditions.
    """
    gpu = Catalogue(config).gpu_of(cluster)
    assert gpu is not None, "a cluster with passports has GPUs"
    shape = num_nodes, cluster.gpus_per_node
    # A simulated run may have had its hosts in another order; their names tell the nodes.
    reordered = (
        slot.model_copy(update={"node": int(slot.host.removeprefix("node"))})
        if re.fullmatch(r"node\d+", slot.host)
        else slot
        for slot in passport.slots
    )
    slots = tuple(slot for slot in reordered if slot.node < num_nodes)
    power_w, temp_c = np.zeros(shape), np.full(shape, np.nan)
    for slot in slots:
        power_w[slot.node, slot.device], temp_c[slot.node, slot.device] = slot.power_w, slot.temp_c
    machine = machine_of(cluster.conditions.without_faults, gpu, shape, cluster.like or cluster.name, config)
    no_series = np.empty((0, *shape))
    runs = Runs(cluster, machine, [Observed(power_w, temp_c, no_series, no_series, 0.0)])
    return Learned(passport.model_copy(update={"slots": slots}), runs, None)


def _shared(fit: _Fit) -> dict[str, Known]:
    """Return the shared parameters with their intervals: linear for the inlet, in the logarithm for the others."""
    value, sigma = values_of(fit.start, fit.at), np.sqrt(np.diag(fit.covariance))
    low, high = value * np.exp(-Z90 * sigma), value * np.exp(Z90 * sigma)
    low[0], high[0] = value[0] - Z90 * sigma[0], value[0] + Z90 * sigma[0]
    return {
        name: Known(value=float(value[k]), lo=float(low[k]), hi=float(high[k]), unit=_UNITS[k])
        for k, name in enumerate(LEARNED)
    }


class Cooling(NamedTuple):
    """Cooling of slots in one run; arrays of shape (num_nodes, num_devices).

    Attributes:
        preheat_k: Temperature of the air at the sink above the inlet. Unit: K.
        preheat_sigma_k: Standard deviation of the preheat. Unit: K.
        resistance: Thermal resistance from the die to that air. Unit: K/W.
        resistance_sigma: Standard deviation of the resistance. Unit: K/W.
        contact: Resistance from die to sink over that of the GPU type. Unit: 1.
        contact_log_sigma: Standard deviation of the logarithm of the contact.
    """

    preheat_k: Float
    preheat_sigma_k: Float
    resistance: Float
    resistance_sigma: Float
    contact: Float
    contact_log_sigma: Float


def cooling_of(start: Machine, at: Float, covariance: Float, observed: Observed) -> Cooling:
    """Return the cooling of slots from their temperatures and the shared parameters that were fitted.

    Args:
        start: The nodes as declared.
        at: Parameters at the end of `heat_search.search`.
        covariance: Covariance of these parameters.
        observed: Power and temperatures of a run.
    """
    power_w = np.where(observed.power_w > 0.0, observed.power_w, np.nan)
    inlet_c, air_k = _air(start, at, observed)
    slopes = []
    for parameter in range(len(LEARNED)):
        moved = at.copy()
        moved[parameter] += _DIFFERENCE
        moved_inlet_c, moved_air_k = _air(start, moved, observed)
        slopes.append(((moved_air_k - air_k) / _DIFFERENCE, (moved_inlet_c - inlet_c) / _DIFFERENCE))
    air_slopes = np.stack([air for air, _ in slopes])
    both_slopes = np.stack([air + inlet for air, inlet in slopes])
    air_sigma_k, both_sigma_k = (
        np.sqrt(np.maximum(np.einsum("iab,ij,jab->ab", each, covariance, each), 0.0))
        for each in (air_slopes, both_slopes)
    )
    sigma_k = np.hypot(both_sigma_k, NOISE_K)
    machine = with_numbers(start, at)
    contact = machine.devices.die
    die = machine.cooled_by.die_resistance.value * contact * power_w
    # The contact of a typical part has two sources, the measurement and the prior; that of a faulty one has no prior.
    measured = np.hypot(sigma_k / die, BETWEEN["die_resistance"])
    spread = np.where(np.abs(np.log(contact)) < 5 * start.heat.resistance_spread.value,
                      start.heat.resistance_spread.value, np.inf)  # fmt: skip
    return Cooling(
        air_k, air_sigma_k, (observed.temp_c - inlet_c - air_k) / power_w, sigma_k / power_w, contact,
        1.0 / np.sqrt(measured**-2.0 + spread**-2.0),
    )  # fmt: skip


def _air(start: Machine, at: Float, observed: Observed) -> tuple[Float, Float]:
    """Return the inlet in degC, shape (num_nodes, 1), and the air at sinks above it in K, (num_nodes, num_devices)."""
    loaded = with_numbers(start, at).under_load(observed.power_w)
    state = loaded.network.steady(observed.power_w)
    return loaded.inlet_c[:, None], state[:, 2 * start.shape[1] :]


def _slots(
    fit: _Fit,
    observed: Observed,
    manifest: Manifest,
    clocks: Mapping[tuple[int, int], float],
    excess: Mapping[int, float],
) -> list[Slot]:
    """Return the slots of a run.

    Args:
        fit: The shared parameters.
        observed: Power and temperatures of the run.
        manifest: Manifest of the run.
        clocks: Mean clock by (node, device). Unit: MHz.
        excess: Excess of computation time by rank.
    """
    cooling = cooling_of(fit.start, fit.at, fit.covariance, observed)
    names, slots = hosts_of(manifest), list[Slot]()
    for node in manifest.nodes:
        for device in node.devices:
            place = node.node, int(device.device.removeprefix("gpu"))
            if not np.isfinite(observed.temp_c[place]):
                continue
            contact, log_sigma = float(cooling.contact[place]), float(cooling.contact_log_sigma[place])
            width = float(np.exp(Z90 * log_sigma))
            slots.append(Slot(
                host=names[node.node], node=place[0], device=place[1], uuid=device.uuid,
                temp_c=float(observed.temp_c[place]), power_w=float(observed.power_w[place]),
                clock_mhz=clocks.get(place),
                preheat_k=_known(cooling.preheat_k[place], cooling.preheat_sigma_k[place], "K"),
                resistance=_known(cooling.resistance[place], cooling.resistance_sigma[place], "K/W"),
                contact=Known(value=contact, lo=contact / width, hi=contact * width, unit="1"),
                compute_excess=excess.get(device.rank),
            ))  # fmt: skip
    return slots


def _known(value: float, sigma: float, unit: str) -> Known:
    return Known(value=float(value), lo=float(value - Z90 * sigma), hi=float(value + Z90 * sigma), unit=unit)


def hosts_of(manifest: Manifest) -> dict[int, str]:
    """Return the hosts of a run by node; node0, node1, ... if two nodes share a name, or if the run is simulated."""
    hosts = {node.node: node.host for node in manifest.nodes}
    has_names = manifest.origin != "simulated" and len(set(hosts.values())) == len(hosts)
    return hosts if has_names else {node: f"node{node}" for node in hosts}


def _clocks(folder: Path) -> dict[tuple[int, int], float]:
    """Return the mean clock of every (node, device) in steps. Unit: MHz."""
    table = TELEMETRY.read(folder / "telemetry.parquet").select(["node", "device", "step", "sm_clock_mhz"])
    table = table.filter(pc.and_(pc.is_valid(table["sm_clock_mhz"]), pc.is_valid(table["step"])))
    means = table.group_by(["node", "device"]).aggregate([("sm_clock_mhz", "mean")]).to_pylist()
    return {
        (row["node"], int(row["device"].removeprefix("gpu"))): row["sm_clock_mhz_mean"]
        for row in means
        if row["device"].startswith("gpu")
    }


def _excess(folder: Path) -> dict[int, float]:
    """Return the excess of computation time over peers by rank, 0 for ranks that traces do not show to be slow."""
    path = folder / "ranks.parquet"
    if not path.is_file():
        return {}
    return {
        row["rank"]: max(row["compute_excess"], 0.0) if row["is_straggler"] else 0.0
        for row in RANKS.read(path).to_pylist()
        if row["compute_excess"] is not None
    }


def contacts_over(machine: Machine, observed: Observed) -> tuple[float, Float]:
    """Return the inlet and the contacts with which a machine has the temperatures of a run.

    The inlet is chosen so that the median slot has the contact of its GPU type. Blocked air counts as contact.

    Args:
        machine: The nodes as declared.
        observed: Power and temperatures.

    Returns:
        Inlet in degC, and contacts of shape (num_nodes, num_devices), 1 where nothing was measured.
    """
    equal = replace(machine, devices=replace(machine.devices, die=np.ones(machine.shape))).under_load(observed.power_w)
    rise_k = equal.network.steady(observed.power_w)[:, : machine.shape[1]]
    inlet_c = float(np.nanmedian(observed.temp_c - rise_k))
    with np.errstate(divide="ignore", invalid="ignore"):
        contact = 1.0 + (observed.temp_c - inlet_c - rise_k) / (equal.cooled_by.die_resistance.value * observed.power_w)
    return inlet_c, np.where(np.isfinite(contact), np.clip(contact, 0.3, 20.0), 1.0)
