"""Fits what links are like to measured collectives, offline; and says how far off the model is."""

import csv
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from typing import Annotated, cast, get_args

import numpy as np
import numpy.typing as npt
import yaml
from pydantic import Field

from triplepoint.config.base import Strict, parse
from triplepoint.config.yaml_file import read_yaml
from triplepoint.errors import UserError, nearest
from triplepoint.metrics import bus_factor, robust_sigma
from triplepoint.simulate.collectives.links import Link
from triplepoint.simulate.collectives.model import CollectiveModel
from triplepoint.simulate.fabric import Fabric, Group, Network, network_levels, scale_up_levels
from triplepoint.simulate.operations import CommKind
from triplepoint.units import GIGA, MIB, US_PER_S

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
"""Where the search begins beside the link as it is: the two trade against each other, with several lowest points."""

LEAST_SIGMA = 0.05
"""Two clusters of the same kind differ by as much: assumed."""

ENOUGH, FEW_SIGMA = 8, 0.10
"""With fewer rows than this the error says little, and sigma is at least this: assumed."""

EXACT = 0.05
"""Relative error below which it does not matter how well a row was read: runs of the same benchmark differ by it."""


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
        num_bytes: Size of the message. Unit: byte.
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
    with path.open(encoding="utf-8", newline="") as file:
        return [_row(found, fabrics, f"{path}:{line}") for line, found in enumerate(csv.DictReader(file), 2)]


def _row(found: Mapping[str, str], fabrics: Mapping[str, MeasuredFabric], where: str) -> Row:
    for column, known in (("fabric", fabrics), ("kind", KINDS), ("unit", UNITS)):
        if found[column] not in known:
            raise UserError(f"{where}: unknown {column} {found[column]!r}{nearest(found[column], known)}")
    try:
        num_gpus, num_bytes, value = int(found["num_gpus"]), int(found["num_bytes"]), float(found["value"])
        read_error = float(found["read_error"] or 0) / value
    except (ValueError, ZeroDivisionError) as error:
        raise UserError(f"{where}: {error}; expected numbers in num_gpus, num_bytes, value and read_error") from None
    kind = cast(CommKind, found["kind"])
    time_s = value / US_PER_S
    if found["unit"] != "us":
        outside = num_gpus - fabrics[found["fabric"]].gpus_per_node
        # Within one node all but a rank's own part leaves the GPU.
        crossing = (outside if outside > 0 else num_gpus - 1) / num_gpus
        factor = float(bus_factor(kind, num_gpus)) if found["unit"] == "GB/s" else crossing
        time_s = num_bytes * factor / (value * GIGA)
    return Row(found["fabric"], kind, num_gpus, num_bytes, time_s, read_error, found["source"])


def log_errors(rows: Sequence[Row], fabrics: Mapping[str, MeasuredFabric], links: Links) -> list[float]:
    """Return the logarithm of modelled over measured time of each row."""
    models = {name: CollectiveModel(fabrics[name].fabric(links), links) for name in {row.fabric for row in rows}}
    return [
        log(models[row.fabric].time_s(row.kind, row.num_bytes, Group(row.num_gpus, 1)) / row.time_s) for row in rows
    ]


def fit_collectives(rows: Sequence[Row], fabrics: Mapping[str, MeasuredFabric], links: Links) -> dict[str, Link]:
    """Return links whose parameters with a prior are fitted to measured collectives, with what is left over as sigma.

    A link is fitted to the rows where it is the outermost, so links inside a node come before the network.

    Args:
        rows: Measured collectives.
        fabrics: What they were measured on.
        links: All kinds of link; of those to fit, the priors count and not the values. Without rows they are the prior.
    """
    found = {name: link.model_copy(update=link.prior) for name, link in links.items()}
    for name in sorted(links, key=lambda name: links[name].is_network):
        of_link = [row for row in rows if fabrics[row.fabric].link == name]
        if of_link:
            found[name] = _described(_fit_link(of_link, fabrics, found, name), of_link, fabrics, found)
    return found


def _described(link: Link, rows: Sequence[Row], fabrics: Mapping[str, MeasuredFabric], links: Links) -> Link:
    """Return a fitted link with how well it fits: above 1 MiB, where there is any."""
    large = [row for row in rows if row.num_bytes > MIB] or rows
    errors = log_errors(large, fabrics, {**links, link.name: link})
    median = statistics.median(abs(exp(error) - 1) for error in errors)
    sources = ", ".join(sorted({row.source for row in rows}))
    told = f"{len(rows)} rows of {sources}; median error of the {len(large)} largest {median:.1%}"
    spread = max(LEAST_SIGMA, robust_sigma(errors)) if len(large) >= ENOUGH else max(FEW_SIGMA, median)
    sizes = [row.num_bytes for row in rows]
    return link.model_copy(
        update={
            "sigma": spread,
            "min_bytes": min(sizes),
            "max_bytes": max(sizes),
            "max_gpus": max(row.num_gpus for row in rows),
            "fitted_to": told,
        }
    )


def write_link(link: Link, config: Path) -> None:
    """Write a link to its file in the folder of the configuration, numbers to four digits."""
    content = {
        key: float(f"{value:.4g}") if isinstance(value, float) else value
        for key, value in link.model_dump(exclude_defaults=True).items()
    }
    text = yaml.safe_dump(content, sort_keys=False, width=120, allow_unicode=True)
    (config / "collectives" / "links" / f"{link.name}.yaml").write_text(text, encoding="utf-8")


def _fit_link(rows: Sequence[Row], fabrics: Mapping[str, MeasuredFabric], links: dict[str, Link], name: str) -> Link:
    prior = links[name].prior
    weights = [EXACT / max(EXACT, row.read_error) for row in rows]

    def loss(link: Link) -> float:
        errors = log_errors(rows, fabrics, links | {name: link})
        missed = sum(weight * abs(error) for weight, error in zip(weights, errors, strict=True))
        strayed = sum(abs(log(getattr(link, parameter) / value)) for parameter, value in prior.items())
        return missed + PRIOR_WEIGHT * strayed

    starts = [links[name].model_copy(update=start) for start in STARTS if set(start) <= set(prior)]
    found = min((_descend(start, list(prior), loss, "Powell") for start in [links[name], *starts]), key=loss)
    # Powell's method moves one parameter at a time: where two trade against each other it stops too early.
    return _descend(found, list(prior), loss, "Nelder-Mead")


def _descend(link: Link, parameters: Sequence[str], loss: Callable[[Link], float], method: str) -> Link:
    """Return the link with the least loss downhill from one; the loss has kinks, and so no slopes to follow."""
    from scipy.optimize import minimize

    start = np.log([getattr(link, parameter) for parameter in parameters])
    most = [
        0.0 if "efficiency" in parameter else at + FARTHEST for parameter, at in zip(parameters, start, strict=True)
    ]

    def moved(at: npt.NDArray[np.float64]) -> Link:
        return link.model_copy(update=dict(zip(parameters, np.exp(at).tolist(), strict=True)))

    bounds = list(zip(start - FARTHEST, most, strict=True))
    best = minimize(lambda at: loss(moved(at)), start, method=method, bounds=bounds, options=NEAR_ENOUGH[method])
    return moved(best.x)
