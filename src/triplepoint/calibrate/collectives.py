"""Fit of link parameters to measured collectives, for `triplepoint calibrate --collectives`.

A table is either of one cluster, as `triplepoint doctor --measure` writes it, and gives the links of that cluster, or
of the fabrics in `collectives/fabrics.yaml`, and gives the kinds of link themselves.
"""

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
from triplepoint.text import percent
from triplepoint.units import GIGA, MIB, US_PER_S

LEVELS = ("node", "network")

FITTED = ("launch_s", "latency_s", "tree_latency", "peer_s", "efficiency", "exchange_efficiency", "bend")
"""Parameters of any kind of link that a table of the doctor determines."""

CPU_LINK = "pcie5"
"""Kind of link that models processes on one machine, whose collectives pass through its memory."""
CPU_NETWORK = "ethernet"
"""Kind of link between machines without GPUs."""
NETWORK = "infiniband"
"""Kind of link between nodes with GPUs."""

UNITS = ("GB/s", "GB/s crossing", "us")

KINDS: tuple[CommKind, ...] = get_args(CommKind)

Links = Mapping[str, Link]

FARTHEST = 5.0
"""Largest change of a parameter's logarithm from its start."""
TOLERANCES = {"Powell": {"xtol": 1e-2, "ftol": 1e-3}, "Nelder-Mead": {"xatol": 1e-3, "fatol": 1e-3}}
"""Tolerances of each search method: at most one percent of a parameter and a thousandth of the loss."""

PRIOR_WEIGHT = 0.1
"""Weight of a parameter's log deviation from its prior, against 1 for the log error of a row: the prior decides only
where rows do not."""

STARTS = tuple({"bend": bend, "launch_s": launch_s} for bend in (0.8, 1.2) for launch_s in (1e-5, 3e-5))
"""Further starts of the search: these two parameters trade against each other, and the loss has several minima."""

LEAST_SIGMA = 0.05
"""Least relative standard deviation of a link, between two clusters of the same kind. Assumption."""

ENOUGH, FEW_SIGMA = 8, 0.10
"""Rows from which the error gives the standard deviation, and the least standard deviation with fewer. Assumption."""

EXACT = 0.05
"""Relative reading error below which all rows have equal weight, as runs of one benchmark differ by as much."""


@dataclass(frozen=True)
class MeasuredCollectives:
    """Measured collectives and the links that they ran over.

    Attributes:
        rows: The collectives.
        fabrics: Fabrics that they were measured on, by name.
        links: All kinds of link that the fabrics may need, by name.
        to_fit: Names of the links to fit, from the inside out.
    """

    rows: list["Row"]
    fabrics: Mapping[str, "MeasuredFabric"]
    links: Links
    to_fit: list[str]


@dataclass(frozen=True)
class LinkFit:
    """Links fitted to measured collectives.

    Attributes:
        links: The fitted links.
        held_out_median: Median relative error on held-out sizes. None where no size could be held out.
    """

    links: list[Link]
    held_out_median: float | None


@dataclass(frozen=True)
class LinkParameters:
    """The procedure: see `calibrate.protocol`.

    Attributes:
        table: `collectives.csv` of `triplepoint doctor`, or a table of fabrics in `collectives/fabrics.yaml`.
        config: Folder of the configuration.
    """

    table: Path
    config: Path

    def read(self) -> MeasuredCollectives:
        """Return the table's rows. Raises `UserError` if the table is missing or of unknown fabrics."""
        names = _fabric_names(self.table)
        fabrics = read_fabrics(self.config)
        if not names or not names <= set(fabrics):
            return _read_cluster(names, self.table, self.config)
        rows = read_rows(fabrics, self.table)
        kinds = (self.config / "collectives" / "links").glob("*.yaml")
        links = {path.stem: load_link(path.stem, self.config) for path in sorted(kinds)}
        return MeasuredCollectives(rows, fabrics, links, sorted({fabrics[row.fabric].link for row in rows}))

    def fit(self, measured: MeasuredCollectives) -> LinkFit:
        """Return the links, and the error on every other size by a fit to the sizes between."""
        fitted = fit_collectives(measured.rows, measured.fabrics, measured.links)
        errors: list[float] = []
        for first in (0, 1):
            held_out = every_other_size(measured.rows, first)
            rest = [row for row in measured.rows if row not in held_out]
            blind = fit_collectives(rest, measured.fabrics, measured.links)
            errors += log_errors([row for row in measured.rows if row in held_out], measured.fabrics, blind)
        median = statistics.median(abs(exp(error) - 1) for error in errors) if errors else None
        return LinkFit([fitted[name] for name in measured.to_fit], median)

    def report(self, fitted: LinkFit) -> list[str]:
        """Return lines of text on every link, on how to simulate with it, and on the held-out error."""
        lines = []
        for link in fitted.links:
            lines.append(f"{self._path(link)}: {link.fitted_to}")
            cluster = self.config / "clusters" / f"{link.name.rpartition('-')[0]}.yaml"
            if cluster.is_file() and Catalogue(self.config).gpu_of(Catalogue(self.config).cluster(cluster.stem)):
                key = "network_link" if link.is_network else "scale_up_link"
                lines.append(f"    to simulate with it, set {key}: {link.name} in {cluster}")
        if fitted.held_out_median is not None:
            lines.append(f"sizes held out of the fit: median error {percent(fitted.held_out_median)}")
        return lines

    def files(self, fitted: LinkFit) -> dict[Path, str]:
        """Return the files of the links."""
        return {self._path(link): link_file(link) for link in fitted.links}

    def _path(self, link: Link) -> Path:
        return self.config / "collectives" / "links" / f"{link.name}.yaml"


class MeasuredFabric(Strict):
    """Fabric that collectives were measured on."""

    scale_up: str
    """Kind of link inside the node."""
    scale_up_bandwidth: Annotated[float, Field(gt=0)]
    """Scale-up bandwidth of one GPU, one direction. Unit: byte/s."""
    gpus_per_node: Annotated[int, Field(gt=0)]
    """GPUs per node."""
    has_reduction: bool = False
    """Whether the NVLink switches reduce."""
    network: str | None = None
    """Kind of link between nodes; null where all GPUs are on one node."""
    node_bandwidth: float = 0.0
    """Bandwidth of all adapters of a node together, one direction. Unit: byte/s."""
    network_reduces: bool = False
    """Whether the network switches reduce."""
    source: str
    """Source of the description, or the assumption made."""

    def fabric(self, links: Links) -> Fabric:
        """Return the levels of the fabric with the given links."""
        inside = scale_up_levels(links[self.scale_up], self.gpus_per_node, self.scale_up_bandwidth, self.has_reduction)
        if self.network is None:
            return Fabric(inside)
        network = Network(self.node_bandwidth, link=self.network, has_reduction=self.network_reduces)
        return Fabric(inside + network_levels(network, links[self.network], self.gpus_per_node, 1 << 20))

    @property
    def link(self) -> str:
        """Kind of link at the outermost level, the one that is fitted to the fabric's rows."""
        return self.network or self.scale_up


@dataclass(frozen=True)
class Row:
    """One measured collective.

    Attributes:
        fabric: Name of the fabric that it was measured on.
        kind: Kind of the collective.
        num_gpus: Size of the group, whose ranks have stride 1.
        num_bytes: Size of the collective. Unit: byte.
        time_s: Duration. Unit: s.
        read_error: Relative error of reading the value off a plot; 0 if it was printed.
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
    """Read the fabrics of `collectives/fabrics.yaml`, by name. Raises `UserError` if the file is invalid."""
    path = config / "collectives" / "fabrics.yaml"
    return {name: parse(MeasuredFabric, content, f"{path}: {name}") for name, content in read_yaml(path).items()}


def read_rows(fabrics: Mapping[str, MeasuredFabric], path: Path) -> list[Row]:
    """Read measured collectives from a table.

    Its units are `GB/s`, bus bandwidth; `GB/s crossing`, bytes that leave the node (within one node: the GPU) over
    time; and `us`, time.

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
        # Within one node, all but a rank's own shard leaves the GPU.
        crossing = (outside if outside > 0 else num_gpus - 1) / num_gpus
        factor = float(bus_factor(kind, num_gpus)) if cells["unit"] == "GB/s" else crossing
        time_s = num_bytes * factor / (value * GIGA)
    return Row(cells["fabric"], kind, num_gpus, num_bytes, time_s, read_error, cells["source"])


def log_errors(rows: Sequence[Row], fabrics: Mapping[str, MeasuredFabric], links: Links) -> list[float]:
    """Return the logarithm of modelled over measured time, in the order of the rows."""
    errors: list[float] = Curves(rows).log_errors(fabrics, links).tolist()
    return errors


class Curves:
    """Measured collectives grouped by fabric, kind and group size, to model all sizes of a group in one call."""

    def __init__(self, rows: Sequence[Row]) -> None:
        curves = defaultdict(list)
        for index, row in enumerate(rows):
            curves[(row.fabric, row.kind, Group(row.num_gpus, 1))].append(index)
        self._sizes = {
            curve: (np.array(indices), np.array([float(rows[index].num_bytes) for index in indices]))
            for curve, indices in curves.items()
        }
        self._measured = np.log([row.time_s for row in rows])

    def log_errors(self, fabrics: Mapping[str, MeasuredFabric], links: Links) -> FloatArray:
        """Return the logarithm of modelled over measured time, in the order of the rows."""
        models = {
            name: CollectiveModel(fabrics[name].fabric(links), links) for name in {name for name, *_ in self._sizes}
        }
        modelled = np.empty_like(self._measured)
        for (name, kind, group), (indices, sizes) in self._sizes.items():
            modelled[indices] = models[name].times_s(kind, sizes, group)
        return np.log(modelled) - self._measured


def every_other_size(rows: Sequence[Row], first: int) -> set[Row]:
    """Return the rows of every second size of each curve, from the smallest (`first` 0) or the second size (1)."""
    curves = defaultdict(list)
    for row in rows:
        curves[(row.fabric, row.kind, row.num_gpus, row.source)].append(row)
    ordered = (sorted(curve, key=lambda row: row.num_bytes) for curve in curves.values() if len(curve) > 1)
    return {row for curve in ordered for row in curve[first::2]}


def fit_collectives(rows: Sequence[Row], fabrics: Mapping[str, MeasuredFabric], links: Links) -> dict[str, Link]:
    """Fit the parameters of links that have a prior to measured collectives, and set sigma to the residual error.

    A link is fitted to the rows of fabrics whose outermost link it is. Links inside a node are fitted first, then
    those of networks.

    Args:
        rows: Measured collectives.
        fabrics: Fabrics that they were measured on, by name.
        links: All kinds of link, by name.

    Returns:
        All links by name. A link without rows gets the values of its prior.
    """
    fitted = {name: link.model_copy(update=link.prior) for name, link in links.items()}
    for name in sorted(links, key=lambda name: links[name].is_network):
        link_rows = [row for row in rows if fabrics[row.fabric].link == name]
        if link_rows:
            fitted[name] = _with_errors(_fit_link(link_rows, fabrics, fitted, name), link_rows, fabrics, fitted)
    return fitted


def _with_errors(link: Link, rows: Sequence[Row], fabrics: Mapping[str, MeasuredFabric], links: Links) -> Link:
    """Return a fitted link with its error on sizes above 1 MiB, or on all sizes where none is larger."""
    large = [row for row in rows if row.num_bytes > MIB] or rows
    errors = log_errors(large, fabrics, {**links, link.name: link})
    median = statistics.median(abs(exp(error) - 1) for error in errors)
    sources = ", ".join(sorted({row.source for row in rows}))
    fitted_to = f"{len(rows)} rows of {sources}; median error of the {len(large)} largest {percent(median)}"
    sigma = max(LEAST_SIGMA, robust_sigma(errors)) if len(large) >= ENOUGH else max(FEW_SIGMA, median)
    sizes = [row.num_bytes for row in rows]
    return link.model_copy(
        update={
            "sigma": sigma,
            "min_bytes": min(sizes),
            "max_bytes": max(sizes),
            "max_gpus": max(row.num_gpus for row in rows),
            "fitted_to": fitted_to,
        }
    )


def link_file(link: Link) -> str:
    """Return the text of a link's file, with numbers to four digits."""
    content = link.model_dump(exclude_defaults=True).items()
    return to_yaml({key: rounded(value, 4) if isinstance(value, float) else value for key, value in content})


def _fit_link(rows: Sequence[Row], fabrics: Mapping[str, MeasuredFabric], links: dict[str, Link], name: str) -> Link:
    prior = links[name].prior
    weights = np.array([EXACT / max(EXACT, row.read_error) for row in rows])
    curves = Curves(rows)

    def loss(link: Link) -> float:
        row_loss = float(weights @ np.abs(curves.log_errors(fabrics, links | {name: link})))
        prior_loss = sum(abs(log(getattr(link, parameter) / value)) for parameter, value in prior.items())
        return row_loss + PRIOR_WEIGHT * prior_loss

    starts = [links[name].model_copy(update=start) for start in STARTS if set(start) <= set(prior)]
    best = min((_minimise(start, list(prior), loss, "Powell") for start in [links[name], *starts]), key=loss)
    # Powell's method moves one parameter at a time, and stops too early where two trade against each other.
    return _minimise(best, list(prior), loss, "Nelder-Mead")


def _minimise(link: Link, parameters: Sequence[str], loss: Callable[[Link], float], method: str) -> Link:
    """Return the link with the least loss, downhill from `link`. The loss has kinks, so the search takes no slopes."""
    from scipy.optimize import minimize

    start = np.log([getattr(link, parameter) for parameter in parameters])
    upper = [
        0.0 if "efficiency" in parameter else value + FARTHEST
        for parameter, value in zip(parameters, start, strict=True)
    ]

    def with_parameters(logs: FloatArray) -> Link:
        return link.model_copy(update=dict(zip(parameters, np.exp(logs).tolist(), strict=True)))

    best = minimize(
        lambda logs: loss(with_parameters(logs)), start, method=method,
        bounds=list(zip(start - FARTHEST, upper, strict=True)), options=TOLERANCES[method],
    )  # fmt: skip
    return with_parameters(best.x)


def _fabric_names(table: Path) -> set[str]:
    """Return the names of fabrics in a table. Raises `UserError` if the file is missing or lacks a column."""
    if not table.exists():
        raise UserError(f"{table}: no such file; write one with 'triplepoint doctor --cluster NAME --measure'")
    return {row["fabric"] for _, row in read_measured(table, _COLUMNS)}


def _read_cluster(names: set[str], table: Path, config: Path) -> MeasuredCollectives:
    """Read a table of one cluster, with the kinds of its links as priors.

    Args:
        names: Names of fabrics in the table.
        table: The table.
        config: Folder of the configuration.

    Raises:
        UserError: If the table has no rows or is not of one cluster in the configuration.
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
    kinds = {level: load_link(_link_kind(gpu, level), config) for level in LEVELS}
    links = {f"{name}-{level}": _cluster_link(kind, f"{name}-{level}") for level, kind in kinds.items()}
    rows = read_rows({fabric: _fabric(cluster, gpu, links, fabric, {}) for fabric in levels}, table)
    fabrics = {fabric: _fabric(cluster, gpu, links, fabric, _best_bandwidths(rows)) for fabric in levels}
    return MeasuredCollectives(rows, fabrics, links, levels)


def _link_kind(gpu: GpuConfig | None, level: str) -> str:
    """Return the kind of link at a level of a cluster, by its GPU type."""
    if level == "network":
        return CPU_NETWORK if gpu is None else NETWORK
    return CPU_LINK if gpu is None else gpu.scale_up_link


def _cluster_link(kind: Link, name: str) -> Link:
    """Return a cluster's own link, whose priors are the values of its kind."""
    parameters = [*FITTED, *(parameter for parameter in kind.prior if parameter not in FITTED)]
    prior = {parameter: value for parameter in parameters if (value := getattr(kind, parameter)) > 0}
    return kind.model_copy(
        update={"name": name, "prior": prior, "source": f"priors and the rest: {kind.name} as fitted"}
    )


def _fabric(
    cluster: ClusterConfig, gpu: GpuConfig | None, links: Mapping[str, Link], fabric: str, fastest: Mapping[str, float]
) -> MeasuredFabric:
    """Return the fabric of one level of a cluster.

    Args:
        cluster: The cluster.
        gpu: Its GPU type; None for a cluster of CPUs.
        links: Links of the cluster by name.
        fabric: Name of the fabric, `<cluster>-<level>`.
        fastest: Best measured bandwidth by fabric, which a cluster of CPUs takes as its bandwidth. Unit: byte/s.

    Raises:
        UserError: If the cluster has no description of its network adapters.
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


def _best_bandwidths(rows: list[Row]) -> dict[str, float]:
    """Return the best bus bandwidth on each fabric. Unit: byte/s."""
    fastest: dict[str, float] = {}
    for row in rows:
        rate = float(bus_factor(row.kind, row.num_gpus)) * row.num_bytes / row.time_s
        fastest[row.fabric] = max(fastest.get(row.fabric, 0.0), rate)
    return fastest
