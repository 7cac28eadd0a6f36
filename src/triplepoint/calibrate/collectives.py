"""Calibrates links to measured collectives: those of a cluster to its own table, for `triplepoint calibrate`."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from typing import Annotated, cast, get_args

import numpy as np
from pydantic import Field

from triplepoint.calibrate.protocol import positive, rounded, to_yaml
from triplepoint.config.base import Strict, parse
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.cluster import ClusterConfig
from triplepoint.config.gpu import GpuConfig
from triplepoint.config.yaml_file import read_measured, read_yaml
from triplepoint.errors import UserError, nearest
from triplepoint.metrics import bus_factor, robust_sigma
from triplepoint.simulate.collectives.links import Link, load_link
from triplepoint.simulate.collectives.times import CollectiveModel, FloatArray
from triplepoint.simulate.fabric import Fabric, Group, Network, network_levels, scale_up_levels
from triplepoint.simulate.operations import CommKind
from triplepoint.units import GIGA, MIB, US_PER_S

LEVELS = ("node", "network")

FITTED = ("launch_s", "latency_s", "tree_latency", "peer_s", "efficiency", "exchange_efficiency", "bend")
"""Parameters that a doctor's table says something about, whatever the kind of link."""

CPU_LINK = "pcie5"
"""Stands for what joins processes on one machine, whose collectives go through its memory."""
CPU_NETWORK = "ethernet"
NETWORK = "infiniband"

UNITS = ("GB/s", "GB/s crossing", "us")

KINDS: tuple[CommKind, ...] = get_args(CommKind)

Links = Mapping[str, Link]

FARTHEST = 5.0
"""How far from its start a parameter is sought, in its logarithm."""
NEAR_ENOUGH = {"Powell": {"xtol": 1e-2, "ftol": 1e-3}, "Nelder-Mead": {"xatol": 1e-3, "fatol": 1e-3}}
"""When each method of search ends: one percent of a parameter, a thousandth of the loss, or less."""

PRIOR_WEIGHT = 0.1
"""What straying from a prior counts, against one row missed by as much: it decides only where rows are silent."""

STARTS = tuple({"bend": bend, "launch_s": launch_s} for bend in (0.8, 1.2) for launch_s in (1e-5, 3e-5))
"""Where the search begins alongside the link as it is: the two trade against each other, with several lowest points."""

LEAST_SIGMA = 0.05
"""Two clusters of the same kind differ by as much: assumed."""

ENOUGH, FEW_SIGMA = 8, 0.10
"""With fewer rows than this the error says little, and sigma is at least this: assumed."""

EXACT = 0.05
"""Relative error below which it does not matter how well a row was read: runs of the same benchmark differ by it."""


@dataclass(frozen=True)
class Measured:
    """Measured collectives, and what is known of the links they ran over.

    Attributes:
        rows: The collectives.
        fabrics: What they were measured on, by name.
        links: All kinds of link they may need, by name.
        to_fit: Names of the links to fit, from the inside out.
    """

    rows: list["Row"]
    fabrics: Mapping[str, "MeasuredFabric"]
    links: Links
    to_fit: list[str]


@dataclass(frozen=True)
class LinkFit:
    """Fitted links, and the median relative error of sizes that were held out; None where nothing could be."""

    links: list[Link]
    held_out_median: float | None


@dataclass(frozen=True)
class LinkParameters:
    """The procedure: see `calibrate.protocol`.

    Attributes:
        table: `collectives.csv` of `triplepoint doctor`, of one cluster; or a table of fabrics that
            `collectives/fabrics.yaml` describes, for the kinds of link themselves.
        config: Folder of the configuration.
    """

    table: Path
    config: Path

    def read(self) -> Measured:
        """Return the table's rows. Raises `UserError` if it is missing or of other fabrics."""
        names = _fabrics_named(self.table)
        described = read_fabrics(self.config)
        if not names or not names <= set(described):
            return _of_cluster(names, self.table, self.config)
        rows = read_rows(described, self.table)
        kinds = (self.config / "collectives" / "links").glob("*.yaml")
        links = {path.stem: load_link(path.stem, self.config) for path in sorted(kinds)}
        return Measured(rows, described, links, sorted({described[row.fabric].link for row in rows}))

    def fit(self, measured: Measured) -> LinkFit:
        """Return the links, and the error of every other size by a fit to the sizes between."""
        fitted = fit_collectives(measured.rows, measured.fabrics, measured.links)
        errors: list[float] = []
        for first in (0, 1):
            held_out = every_other_size(measured.rows, first)
            seen = [row for row in measured.rows if row not in held_out]
            blind = fit_collectives(seen, measured.fabrics, measured.links)
            errors += log_errors([row for row in measured.rows if row in held_out], measured.fabrics, blind)
        median = statistics.median(abs(exp(error) - 1) for error in errors) if errors else None
        return LinkFit([fitted[name] for name in measured.to_fit], median)

    def report(self, fitted: LinkFit) -> list[str]:
        """Return lines on every link, how to simulate with it, and the error of sizes held out."""
        lines = []
        for link in fitted.links:
            lines.append(f"{self._path(link)}: {link.fitted_to}")
            cluster = self.config / "clusters" / f"{link.name.rpartition('-')[0]}.yaml"
            if cluster.is_file() and Catalogue(self.config).gpu_of(Catalogue(self.config).cluster(cluster.stem)):
                key = "network_link" if link.is_network else "scale_up_link"
                lines.append(f"    to simulate with it, set {key}: {link.name} in {cluster}")
        if fitted.held_out_median is not None:
            lines.append(f"sizes held out of the fit: median error {fitted.held_out_median:.1%}")
        return lines

    def files(self, fitted: LinkFit) -> dict[Path, str]:
        """Return the files of the links."""
        return {self._path(link): link_file(link) for link in fitted.links}

    def _path(self, link: Link) -> Path:
        return self.config / "collectives" / "links" / f"{link.name}.yaml"


class MeasuredFabric(Strict):
    """What rows were measured on."""

    scale_up: str
    """Kind of link inside the node."""
    scale_up_bandwidth: Annotated[float, Field(gt=0)]
    """Of one GPU, one direction. Unit: byte/s."""
    gpus_per_node: Annotated[int, Field(gt=0)]
    """GPUs of a node."""
    has_reduction: bool = False
    """Whether NVLink's switches reduce."""
    network: str | None = None
    """Kind of link between nodes."""
    node_bandwidth: float = 0.0
    """All adapters of a node, one direction. Unit: byte/s."""
    network_reduces: bool = False
    """Whether the network's switches reduce."""
    source: str
    """Where it is said, or what is assumed."""

    def fabric(self, links: Links) -> Fabric:
        """Return the levels with links as they are just now."""
        inside = scale_up_levels(links[self.scale_up], self.gpus_per_node, self.scale_up_bandwidth, self.has_reduction)
        if self.network is None:
            return Fabric(inside)
        network = Network(self.node_bandwidth, link=self.network, has_reduction=self.network_reduces)
        return Fabric(inside + network_levels(network, links[self.network], self.gpus_per_node, 1 << 20))

    @property
    def link(self) -> str:
        """Kind of link at the outermost level: the one the rows are fitted for."""
        return self.network or self.scale_up


@dataclass(frozen=True)
class Row:
    """One measured collective.

    Attributes:
        fabric: Name of what it was measured on.
        kind: Of the collective.
        num_gpus: Size of the group, stride 1.
        num_bytes: Size of the collective. Unit: byte.
        time_s: How long it took. Unit: s.
        read_error: Relative error it was read with off a plot; 0 if it was printed.
        source: Short name of the source.
    """

    fabric: str
    kind: CommKind
    num_gpus: int
    num_bytes: int
    time_s: float
    read_error: float
    source: str


def read_fabrics(config: Path) -> dict[str, MeasuredFabric]:
    """Return what was measured on, by name. Raises `UserError` if the file is wrong."""
    path = config / "collectives" / "fabrics.yaml"
    return {name: parse(MeasuredFabric, content, f"{path}: {name}") for name, content in read_yaml(path).items()}


def read_rows(fabrics: Mapping[str, MeasuredFabric], path: Path) -> list[Row]:
    """Return measured collectives from a table.

    `GB/s` is bus bandwidth; `GB/s crossing` what leaves the node, or the GPU within one, over time; `us` time.

    Raises:
        UserError: If a row names an unknown fabric or has no number where one is due.
    """
    return [_row(cells, fabrics, f"{path}:{line}") for line, cells in read_measured(path, _COLUMNS)]


_COLUMNS = ("fabric", "kind", "num_gpus", "num_bytes", "value", "unit", "read_error", "source")


def _row(cells: Mapping[str, str], fabrics: Mapping[str, MeasuredFabric], where: str) -> Row:
    for column, known in (("fabric", fabrics), ("kind", KINDS), ("unit", UNITS)):
        if cells[column] not in known:
            raise UserError(f"{where}: unknown {column} {cells[column]!r}{nearest(cells[column], known)}")
    try:
        num_gpus, num_bytes, value = int(cells["num_gpus"]), int(cells["num_bytes"]), positive(cells["value"])
        read_error = float(cells["read_error"] or 0) / value
    except ValueError as error:
        raise UserError(f"{where}: {error}; expected numbers in num_gpus, num_bytes, value and read_error") from None
    kind = cast(CommKind, cells["kind"])
    time_s = value / US_PER_S
    if cells["unit"] != "us":
        outside = num_gpus - fabrics[cells["fabric"]].gpus_per_node
        # Within one node all but a rank's own part leaves the GPU.
        crossing = (outside if outside > 0 else num_gpus - 1) / num_gpus
        factor = float(bus_factor(kind, num_gpus)) if cells["unit"] == "GB/s" else crossing
        time_s = num_bytes * factor / (value * GIGA)
    return Row(cells["fabric"], kind, num_gpus, num_bytes, time_s, read_error, cells["source"])


def log_errors(rows: Sequence[Row], fabrics: Mapping[str, MeasuredFabric], links: Links) -> list[float]:
    """Return the logarithm of modelled over measured time of each row."""
    errors: list[float] = Curves(rows).log_errors(fabrics, links).tolist()
    return errors


class Curves:
    """Measured collectives by fabric, kind and size of the group, the sizes of each as one array."""

    def __init__(self, rows: Sequence[Row]) -> None:
        of_curve = defaultdict(list)
        for place, row in enumerate(rows):
            of_curve[(row.fabric, row.kind, Group(row.num_gpus, 1))].append(place)
        self._sizes = {
            curve: (np.array(places), np.array([float(rows[place].num_bytes) for place in places]))
            for curve, places in of_curve.items()
        }
        self._measured = np.log([row.time_s for row in rows])

    def log_errors(self, fabrics: Mapping[str, MeasuredFabric], links: Links) -> FloatArray:
        """Return the logarithm of modelled over measured time, in the order of the rows."""
        models = {
            name: CollectiveModel(fabrics[name].fabric(links), links) for name in {name for name, *_ in self._sizes}
        }
        modelled = np.empty_like(self._measured)
        for (name, kind, group), (places, sizes) in self._sizes.items():
            modelled[places] = models[name].times_s(kind, sizes, group)
        return np.log(modelled) - self._measured


def every_other_size(rows: Sequence[Row], first: int) -> set[Row]:
    """Return every second size of each curve, from the smallest (`first` 0) or the one after (1)."""
    curves = defaultdict(list)
    for row in rows:
        curves[(row.fabric, row.kind, row.num_gpus, row.source)].append(row)
    ordered = (sorted(curve, key=lambda row: row.num_bytes) for curve in curves.values() if len(curve) > 1)
    return {row for curve in ordered for row in curve[first::2]}


def fit_collectives(rows: Sequence[Row], fabrics: Mapping[str, MeasuredFabric], links: Links) -> dict[str, Link]:
    """Return links whose parameters with a prior are fitted to measured collectives, with what is left over as sigma.

    A link is fitted to the rows where it is the outermost, so links inside a node come before the network.

    Args:
        rows: Measured collectives.
        fabrics: What they were measured on.
        links: All kinds of link; of those to fit, the priors count and not the values. Without rows they are the prior.
    """
    fitted = {name: link.model_copy(update=link.prior) for name, link in links.items()}
    for name in sorted(links, key=lambda name: links[name].is_network):
        of_link = [row for row in rows if fabrics[row.fabric].link == name]
        if of_link:
            fitted[name] = _described(_fit_link(of_link, fabrics, fitted, name), of_link, fabrics, fitted)
    return fitted


def _described(link: Link, rows: Sequence[Row], fabrics: Mapping[str, MeasuredFabric], links: Links) -> Link:
    """Return a fitted link with how well it fits: above 1 MiB, where there is any."""
    large = [row for row in rows if row.num_bytes > MIB] or rows
    errors = log_errors(large, fabrics, {**links, link.name: link})
    median = statistics.median(abs(exp(error) - 1) for error in errors)
    sources = ", ".join(sorted({row.source for row in rows}))
    fitted_to = f"{len(rows)} rows of {sources}; median error of the {len(large)} largest {median:.1%}"
    spread = max(LEAST_SIGMA, robust_sigma(errors)) if len(large) >= ENOUGH else max(FEW_SIGMA, median)
    sizes = [row.num_bytes for row in rows]
    return link.model_copy(
        update={
            "sigma": spread,
            "min_bytes": min(sizes),
            "max_bytes": max(sizes),
            "max_gpus": max(row.num_gpus for row in rows),
            "fitted_to": fitted_to,
        }
    )


def link_file(link: Link) -> str:
    """Return the content of a link's file, numbers to four digits."""
    content = link.model_dump(exclude_defaults=True).items()
    return to_yaml({key: rounded(value, 4) if isinstance(value, float) else value for key, value in content})


def _fit_link(rows: Sequence[Row], fabrics: Mapping[str, MeasuredFabric], links: dict[str, Link], name: str) -> Link:
    prior = links[name].prior
    weights = np.array([EXACT / max(EXACT, row.read_error) for row in rows])
    curves = Curves(rows)

    def loss(link: Link) -> float:
        missed = float(weights @ np.abs(curves.log_errors(fabrics, links | {name: link})))
        strayed = sum(abs(log(getattr(link, parameter) / value)) for parameter, value in prior.items())
        return missed + PRIOR_WEIGHT * strayed

    starts = [links[name].model_copy(update=start) for start in STARTS if set(start) <= set(prior)]
    nearest_start = min((_descend(start, list(prior), loss, "Powell") for start in [links[name], *starts]), key=loss)
    # Powell's method moves one parameter at a time: where two trade against each other it stops too early.
    return _descend(nearest_start, list(prior), loss, "Nelder-Mead")


def _descend(link: Link, parameters: Sequence[str], loss: Callable[[Link], float], method: str) -> Link:
    """Return the link with the least loss downhill from one; the loss has kinks, and so no slopes to follow."""
    from scipy.optimize import minimize

    start = np.log([getattr(link, parameter) for parameter in parameters])
    most = [
        0.0 if "efficiency" in parameter else at + FARTHEST for parameter, at in zip(parameters, start, strict=True)
    ]

    def moved(at: FloatArray) -> Link:
        return link.model_copy(update=dict(zip(parameters, np.exp(at).tolist(), strict=True)))

    bounds = list(zip(start - FARTHEST, most, strict=True))
    best = minimize(lambda at: loss(moved(at)), start, method=method, bounds=bounds, options=NEAR_ENOUGH[method])
    return moved(best.x)


def _fabrics_named(table: Path) -> set[str]:
    """Return the fabrics a table names. Raises `UserError` if there is no such file, or it is no such table."""
    if not table.exists():
        raise UserError(f"{table}: no such file; write one with 'triplepoint doctor --cluster NAME --measure'")
    return {row["fabric"] for _, row in read_measured(table, _COLUMNS)}


def _of_cluster(names: set[str], table: Path, config: Path) -> Measured:
    """Return a table of one cluster, its links as their kind is known.

    Raises:
        UserError: If it has no rows, or is not of one cluster of the configuration.
    """
    clusters = {fabric.rpartition("-")[0] for fabric in names}
    if len(clusters) != 1 or "" in clusters or not {fabric.rpartition("-")[2] for fabric in names} <= set(LEVELS):
        raise UserError(
            f"{table}: fabrics are {', '.join(sorted(names)) or 'none'}; expected NAME-node and NAME-network of one "
            "cluster, as 'triplepoint doctor --cluster NAME --measure' writes them"
        )
    (name,) = clusters
    levels = [f"{name}-{level}" for level in LEVELS if f"{name}-{level}" in names]
    catalogue = Catalogue(config)
    cluster = catalogue.cluster(name, table)
    gpu = catalogue.gpu_of(cluster)
    bases = {level: load_link(_base(cluster, gpu, level, config), config) for level in LEVELS}
    links = {f"{name}-{level}": _renamed(base, f"{name}-{level}") for level, base in bases.items()}
    rows = read_rows({fabric: _fabric(cluster, gpu, links, fabric, {}) for fabric in levels}, table)
    fabrics = {fabric: _fabric(cluster, gpu, links, fabric, _fastest(rows)) for fabric in levels}
    return Measured(rows, fabrics, links, levels)


def _base(cluster: ClusterConfig, gpu: GpuConfig | None, level: str, config: Path) -> str:
    """Return the kind of link that a level is one of."""
    if level == "network":
        return CPU_NETWORK if gpu is None else NETWORK
    return CPU_LINK if gpu is None else gpu.scale_up_link


def _renamed(base: Link, name: str) -> Link:
    """Return a kind of link as a cluster's own, with what is known of the kind as prior."""
    parameters = [*FITTED, *(parameter for parameter in base.prior if parameter not in FITTED)]
    prior = {parameter: value for parameter in parameters if (value := getattr(base, parameter)) > 0}
    return base.model_copy(
        update={"name": name, "prior": prior, "source": f"priors and the rest: {base.name} as fitted"}
    )


def _fabric(
    cluster: ClusterConfig, gpu: GpuConfig | None, links: Mapping[str, Link], fabric: str, fastest: Mapping[str, float]
) -> MeasuredFabric:
    """Return what a level was measured on; for processors its best bandwidth, in `fastest`, stands for that described.

    Raises:
        UserError: If the adapters of a network are not described.
    """
    node = f"{cluster.name}-node"
    scale_up = gpu.scale_up_bandwidth.value if gpu else fastest.get(node, 1e9)
    common = {
        "scale_up": node, "scale_up_bandwidth": scale_up, "gpus_per_node": cluster.gpus_per_node,
        "has_reduction": links[node].has_reduction, "source": f"config/clusters/{cluster.name}.yaml",
    }  # fmt: skip
    if fabric == node:
        return MeasuredFabric.model_validate(common)
    if gpu is None:
        return MeasuredFabric.model_validate(
            common | {"network": fabric, "node_bandwidth": fastest.get(fabric, 1e9) * cluster.gpus_per_node}
        )
    if cluster.nics_per_node is None or cluster.nic_bandwidth is None:
        raise UserError(f"cluster {cluster.name}: give nics_per_node and nic_bandwidth to calibrate its network")
    bandwidth = cluster.nics_per_node.value * cluster.nic_bandwidth.value
    return MeasuredFabric.model_validate(common | {"network": fabric, "node_bandwidth": bandwidth})


def _fastest(rows: list[Row]) -> dict[str, float]:
    """Return the best bandwidth of each fabric. Unit: byte/s."""
    fastest: dict[str, float] = {}
    for row in rows:
        rate = float(bus_factor(row.kind, row.num_gpus)) * row.num_bytes / row.time_s
        fastest[row.fabric] = max(fastest.get(row.fabric, 0.0), rate)
    return fastest
