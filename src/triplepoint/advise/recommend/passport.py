"""Slot passport: what telemetry of a run says of the cooling, leakage and speed of every GPU of a cluster.

Numbers that all nodes share (inlet, resistances, preheat, fans) are those of `triplepoint calibrate --heat`. The
resistance of a slot follows from what it shows: its die over the air at its sink, for each watt it draws. Leakage
follows from clocks, once the job is simulated (`power_limits.leakage_of`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from triplepoint.calibrate.heat import starting_machine
from triplepoint.calibrate.heat_runs import Observed, Runs, read_runs
from triplepoint.calibrate.heat_search import BETWEEN, NOISE_K, search, values_of, with_numbers
from triplepoint.config.base import Strict
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.cluster import ClusterConfig
from triplepoint.errors import UserError
from triplepoint.manifest import Manifest, read_manifest
from triplepoint.metrics import Z90
from triplepoint.simulate.heat.machine import Machine
from triplepoint.simulate.heat.nodes import machine_of
from triplepoint.simulate.heat.parameters import LEARNED
from triplepoint.simulate.power.gpu import Float
from triplepoint.tables import RANKS, TELEMETRY

_SLOPE = 1e-3
_UNITS = ("degC", "K/W", "K/W", "K/W", "W", "1")


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
    """One GPU where it stands."""

    host: str
    """Host, or node0, node1, ... where hosts have no names of their own."""
    node: int
    """Index of the node within the run."""
    device: int
    """Number of the device on its host."""
    uuid: str | None
    """Identity of the GPU, where known."""
    temp_c: float
    """Mean temperature in balance. Unit: degC."""
    power_w: float
    """Mean power in balance. Unit: W."""
    clock_mhz: float | None
    """Mean clock in measured steps; None where not recorded. Unit: MHz."""
    preheat_k: Known
    """Air at the sink over that at the inlet of the node, at this load."""
    resistance: Known
    """Die over the air at its sink, for each watt."""
    contact: Known
    """Resistance from die to sink over that of its GPU type. Blocked air at the slot counts as contact: temperatures at
    one load do not tell them apart."""
    leakage: float | None = None
    """Leakage over that of a usual part, such that the GPU shows its clock; None where a clock is not known."""
    compute_excess: float | None
    """Computation of its rank over its peers' median, less 1, by traces; None without traces or peers."""

    @property
    def name(self) -> str:
        """Name as clusters have it, counted within the run."""
        return f"node{self.node}.gpu{self.device}"


class Passport(Strict):
    """What one run says of the slots of a cluster."""

    cluster: str
    """Name of the cluster."""
    run: str
    """The run."""
    started_at: str
    """When it began. UTC, ISO 8601."""
    shared: dict[str, Known]
    """Inlet, resistances, preheat and fans of all nodes."""
    contact_spread: float
    """Usual standard deviation of the logarithm of contacts, of the GPU type."""
    slots: tuple[Slot, ...]
    """Every GPU of the run, by node and device."""
    is_simulated: bool = False
    """Whether the run was simulated: then its GPUs are made up."""


@dataclass(frozen=True, eq=False)
class Learned:
    """A passport and what it was made from.

    Attributes:
        passport: The passport.
        runs: Power and temperatures of the run.
        manifest: Of the run; None of a kept passport.
    """

    passport: Passport
    runs: Runs
    manifest: Manifest | None


class _Fit(NamedTuple):
    start: Machine
    at: Float
    covariance: Float


def learn(folder: Path, config: Path) -> Learned:
    """Return the passport of a run's slots.

    Args:
        folder: `results/runs/<run>`, after the telemetry stage; `ranks.parquet` is read where it is there.
        config: Folder of the configuration.

    Raises:
        UserError: If a file is missing, or power or temperature was not measured.
    """
    try:
        runs, manifest = read_runs([folder], config), read_manifest(folder / "raw" / "manifest.json")
    except UserError as error:
        raise UserError(str(error).replace("calibrate --heat: ", "recommend: ", 1)) from None
    start = starting_machine(runs)
    at, covariance, _ = search(start, runs.observed)
    fit = _Fit(start, at, covariance)
    passport = Passport(
        cluster=runs.cluster.name, run=manifest.run, started_at=manifest.started_at, shared=_shared(fit),
        contact_spread=start.heat.resistance_spread.value,
        slots=tuple(_slots(fit, runs.observed[0], manifest, _clocks(folder), _excess(folder))),
        is_simulated=manifest.origin == "simulated",
    )  # fmt: skip
    return Learned(passport, runs, manifest)


def of_passport(passport: Passport, cluster: ClusterConfig, config: Path, num_nodes: int) -> Learned:
    """Return what a kept passport says of the first nodes of a cluster.

    Args:
        passport: The passport.
        cluster: The cluster.
        config: Folder of the configuration.
        num_nodes: Of the job.

    Raises:
        UserError: If the nodes cannot have such conditions.
    """
    gpu = Catalogue(config).gpu_of(cluster)
    assert gpu is not None, "passports are of GPUs"
    shape = num_nodes, cluster.gpus_per_node
    # A simulated run may have had its hosts in another order: they are known by their names.
    named = (
        slot.model_copy(update={"node": int(slot.host.removeprefix("node"))})
        if re.fullmatch(r"node\d+", slot.host)
        else slot
        for slot in passport.slots
    )
    slots = tuple(slot for slot in named if slot.node < num_nodes)
    power_w, temp_c = np.zeros(shape), np.full(shape, np.nan)
    for slot in slots:
        power_w[slot.node, slot.device], temp_c[slot.node, slot.device] = slot.power_w, slot.temp_c
    machine = machine_of(cluster.conditions.without_faults, gpu, shape, cluster.like or cluster.name, config)
    nothing = np.empty((0, *shape))
    runs = Runs(cluster, machine, [Observed(power_w, temp_c, nothing, nothing, 0.0)])
    return Learned(passport.model_copy(update={"slots": slots}), runs, None)


def _shared(fit: _Fit) -> dict[str, Known]:
    value, sigma = values_of(fit.start, fit.at), np.sqrt(np.diag(fit.covariance))
    low, high = value * np.exp(-Z90 * sigma), value * np.exp(Z90 * sigma)
    low[0], high[0] = value[0] - Z90 * sigma[0], value[0] + Z90 * sigma[0]
    return {
        name: Known(value=float(value[k]), lo=float(low[k]), hi=float(high[k]), unit=_UNITS[k])
        for k, name in enumerate(LEARNED)
    }


class Cooling(NamedTuple):
    """Of every slot, shape (num_nodes, num_devices): numbers of one run and their standard deviations.

    Attributes:
        preheat_k: Air at the sink over the inlet. Unit: K.
        preheat_sigma_k: Of it. Unit: K.
        resistance: Die over that air. Unit: K/W.
        resistance_sigma: Of it. Unit: K/W.
        contact: Resistance from die to sink over that of the GPU type. Unit: 1.
        contact_log_sigma: Of its logarithm.
    """

    preheat_k: Float
    preheat_sigma_k: Float
    resistance: Float
    resistance_sigma: Float
    contact: Float
    contact_log_sigma: Float


def cooling_of(start: Machine, at: Float, covariance: Float, one: Observed) -> Cooling:
    """Return the cooling of slots, by what they show and where `heat_search.search` ended.

    Args:
        start: The cluster as it was known.
        at: Where the search ended.
        covariance: Of the numbers that all nodes share.
        one: Power and temperatures of a run.
    """
    number, power_w = len(LEARNED), np.where(one.power_w > 0.0, one.power_w, np.nan)
    inlet_c, air_k = _air(start, at, one)
    slopes = []
    for place in range(number):
        moved = at.copy()
        moved[place] += _SLOPE
        further_c, further_k = _air(start, moved, one)
        slopes.append(((further_k - air_k) / _SLOPE, (further_c - inlet_c) / _SLOPE))
    of_air, of_both = (np.stack(each) for each in ([air for air, _ in slopes], [air + inlet for air, inlet in slopes]))
    air_sigma_k, both_sigma_k = (
        np.sqrt(np.maximum(np.einsum("iab,ij,jab->ab", each, covariance, each), 0.0)) for each in (of_air, of_both)
    )
    sigma_k = np.hypot(both_sigma_k, NOISE_K)
    machine = with_numbers(start, at)
    contact = machine.devices.die
    die = machine.cooled_by.die_resistance.value * contact * power_w
    # What the fit gives a usual part is held by its prior as well as by what it shows.
    shown = np.hypot(sigma_k / die, BETWEEN["die_resistance"])
    spread = np.where(np.abs(np.log(contact)) < 5 * start.heat.resistance_spread.value,
                      start.heat.resistance_spread.value, np.inf)  # fmt: skip
    return Cooling(
        air_k, air_sigma_k, (one.temp_c - inlet_c - air_k) / power_w, sigma_k / power_w, contact,
        1.0 / np.sqrt(shown**-2.0 + spread**-2.0),
    )  # fmt: skip


def _air(start: Machine, at: Float, one: Observed) -> tuple[Float, Float]:
    """Return the inlet, shape (num_nodes, 1), and the air at sinks above it, shape (num_nodes, num_devices)."""
    under = with_numbers(start, at).under_load(one.power_w)
    state = under.network.steady(one.power_w)
    return under.inlet_c[:, None], state[:, 2 * start.shape[1] :]


def _slots(
    fit: _Fit,
    one: Observed,
    manifest: Manifest,
    clocks: Mapping[tuple[int, int], float],
    excess: Mapping[int, float],
) -> list[Slot]:
    cooling = cooling_of(fit.start, fit.at, fit.covariance, one)
    names, found = hosts_of(manifest), list[Slot]()
    for node in manifest.nodes:
        for device in node.devices:
            place = node.node, int(device.device.removeprefix("gpu"))
            if not np.isfinite(one.temp_c[place]):
                continue
            contact, log_sigma = float(cooling.contact[place]), float(cooling.contact_log_sigma[place])
            away = float(np.exp(Z90 * log_sigma))
            found.append(Slot(
                host=names[node.node], node=place[0], device=place[1], uuid=device.uuid,
                temp_c=float(one.temp_c[place]), power_w=float(one.power_w[place]), clock_mhz=clocks.get(place),
                preheat_k=_known(cooling.preheat_k[place], cooling.preheat_sigma_k[place], "K"),
                resistance=_known(cooling.resistance[place], cooling.resistance_sigma[place], "K/W"),
                contact=Known(value=contact, lo=contact / away, hi=contact * away, unit="1"),
                compute_excess=excess.get(device.rank),
            ))  # fmt: skip
    return found


def _known(value: float, sigma: float, unit: str) -> Known:
    return Known(value=float(value), lo=float(value - Z90 * sigma), hi=float(value + Z90 * sigma), unit=unit)


def hosts_of(manifest: Manifest) -> dict[int, str]:
    """Return the hosts of a run by node; node0, node1, ... where two nodes have one name, as in simulated runs."""
    hosts = {node.node: node.host for node in manifest.nodes}
    return hosts if len(set(hosts.values())) == len(hosts) else {node: f"node{node}" for node in hosts}


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
    """Return the computation of ranks beyond that of their peers, of those that traces show to be slow; 0 of others."""
    path = folder / "ranks.parquet"
    if not path.is_file():
        return {}
    return {
        row["rank"]: max(row["compute_excess"], 0.0) if row["is_straggler"] else 0.0
        for row in RANKS.read(path).to_pylist()
        if row["compute_excess"] is not None
    }


def contacts_over(machine: Machine, one: Observed) -> tuple[float, Float]:
    """Return the inlet and the contacts with which a machine as it is described shows what a run showed.

    The inlet is such that the median slot has the usual contact. Blocked air counts as contact.

    Args:
        machine: The nodes.
        one: Power and temperatures.

    Returns:
        Inlet in degC, and contacts of shape (num_nodes, num_devices), 1 where nothing was shown.
    """
    equal = replace(machine, devices=replace(machine.devices, die=np.ones(machine.shape))).under_load(one.power_w)
    rise_k = equal.network.steady(one.power_w)[:, : machine.shape[1]]
    inlet_c = float(np.nanmedian(one.temp_c - rise_k))
    with np.errstate(divide="ignore", invalid="ignore"):
        contact = 1.0 + (one.temp_c - inlet_c - rise_k) / (equal.cooled_by.die_resistance.value * one.power_w)
    return inlet_c, np.where(np.isfinite(contact), np.clip(contact, 0.3, 20.0), 1.0)
