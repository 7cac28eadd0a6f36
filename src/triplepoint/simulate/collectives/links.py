"""Parameters of a kind of link for collectives, fitted to measurements: `config/collectives/links/*.yaml`."""

from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from triplepoint.config.base import NAME_PATTERN, Quantity, Strict, unit_is
from triplepoint.config.yaml_file import read, read_named
from triplepoint.errors import UserError, nearest

Counters = Literal["nvlink", "xgmi", "pcie"]
Positive = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(gt=0, le=1)]


class Protocol(Strict):
    """A protocol of the collective library, relative to its plain protocol (Simple)."""

    latency: Fraction
    """Latency of one ring hop over that of Simple."""
    tree_latency: Fraction
    """Latency of one tree hop over that of Simple."""
    bandwidth: Fraction
    """Bandwidth over that of Simple; smaller because flags travel with the data."""


class Package(Strict):
    """GPUs of one package, joined by faster links than the node."""

    num_gpus: Annotated[int, Field(gt=1)]
    """GPUs of one package."""
    bandwidth: Annotated[Quantity, unit_is("byte/s")]
    """Bandwidth of one GPU to the others of its package, one direction."""


class Link(Strict):
    """One kind of link with its collective library; nothing here depends on the model that is trained."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    """Name of the kind; the file has the same name."""
    is_network: bool
    """Whether it joins nodes."""
    counters: Counters = "pcie"
    """Telemetry columns that count its bytes, for a link inside a node."""
    has_reduction: bool = False
    """Whether its switches reduce by default (NVLink SHARP)."""
    launch_s: Positive
    """Time to start and end a collective that crosses the link. Unit: s."""
    latency_s: Positive
    """Latency of one ring hop with the protocol Simple. Unit: s."""
    tree_latency: Positive
    """Latency of one tree hop over that of a ring hop."""
    reduction_s: Positive
    """Latency of a reduction in the switches. Unit: s."""
    peer_s: Annotated[float, Field(ge=0)]
    """Time that each further peer adds to an all-to-all. Unit: s."""
    efficiency: Fraction
    """Bandwidth of a ring over that of the link."""
    tree_efficiency: Fraction
    """Bandwidth of a tree over that of a ring."""
    reduction_efficiency: Fraction
    """Bandwidth of a reduction in the switches over that of the link."""
    exchange_efficiency: Fraction
    """Bandwidth of all-to-all and send/recv over that of the link."""
    plateau: Annotated[float, Field(ge=1)] = 1.0
    """Factor on the latency of a ring all-reduce with Simple."""
    bend: Positive
    """Exponent of the sum of latency `a` and transfer time `x`, `(a**bend + x**bend) ** (1 / bend)`: 1 is their
    plain sum. A larger one describes a pipeline that hides one behind the other, a smaller one a pipeline that fills
    slowly."""
    protocols: dict[str, Protocol] = {}
    """Protocols other than Simple, by name."""
    usable: dict[int, Fraction] = {}
    """Share of a GPU's links that a group of this size can use, on nodes without a switch; 1 for sizes not listed."""
    no_faster_than: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None
    """Kind of link with the same adapters and library and switches that are no slower: its time is a lower bound. The
    two are fitted to different clusters, collectives and sizes. None: no bound is known."""
    partial_ring_bandwidth: Annotated[Quantity, unit_is("byte/s")] | None = None
    """Bandwidth of all rings of a node together, if GPUs share adapters and each ring has several but not all of the
    node's GPUs. Such a ring leaves by another GPU than it enters, and the two share no adapter. A faster adapter is
    used fully, by rings that leave and enter through it. None: the full bandwidth."""
    package: Package | None = None
    """Faster links between the GPUs of a package."""
    sigma: Positive
    """Robust standard deviation of the logarithm of measured over modelled time. Unit: 1."""
    min_bytes: Annotated[int, Field(gt=0)]
    """Smallest collective of the fit. Unit: byte."""
    max_bytes: Annotated[int, Field(gt=0)]
    """Largest collective of the fit. Unit: byte."""
    max_gpus: Annotated[int, Field(gt=0)]
    """Largest group of the fit."""
    prior: dict[str, Positive] = {}
    """Fitted parameters with their prior values. Every fit starts there and is drawn to them, so it neither depends on
    the last fit nor moves parameters that its data do not determine."""
    fitted_to: str
    """Data and quality of the fit."""
    source: Annotated[str, Field(min_length=8)]
    """Source of the priors and of parameters that are not fitted, and assumptions."""


class Overlap(Strict):
    """Slowdown of computation by collectives that overlap it."""

    compute_slowdown: Annotated[Quantity, unit_is("1")]
    """Additional time of a kernel that collectives overlap, over its time alone; both share SMs and memory
    bandwidth."""


@cache
def load_overlap(config: Path) -> Overlap:
    """Return the slowdown of computation by overlapped collectives.

    Args:
        config: Folder of the configuration.

    Raises:
        UserError: If the file is missing or wrong.
    """
    return read(Overlap, config / "collectives" / "overlap.yaml")


@cache
def load_link(name: str, config: Path) -> Link:
    """Return a kind of link.

    Args:
        name: Name of the kind.
        config: Folder of the configuration.

    Raises:
        UserError: If the name is unknown, with the nearest known one, or the file is wrong.
    """
    folder = config / "collectives" / "links"
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    if name not in known:
        raise UserError(f"unknown link {name!r} in {folder}{nearest(name, known) if known else ''}")
    return read_named(Link, folder / f"{name}.yaml")
