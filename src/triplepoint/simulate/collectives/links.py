"""Parameters of a kind of link for collectives: `config/collectives/links/*.yaml`, fitted offline to measurements."""

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
    """How a protocol of the collective library compares with its plain one (Simple)."""

    latency: Fraction
    """Latency of a ring's hop over that of Simple."""
    tree_latency: Fraction
    """The same of a tree's hop."""
    bandwidth: Fraction
    """Bandwidth over that of Simple: flags travel with the data."""


class Package(Strict):
    """GPUs that share a package, better joined than the node."""

    num_gpus: Annotated[int, Field(gt=1)]
    """GPUs of one package."""
    bandwidth: Annotated[Quantity, unit_is("byte/s")]
    """Of one GPU to the others of its package, one direction."""


class Link(Strict):
    """One kind of link and the collective library on it; nothing here depends on the model that is trained."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    """Name of the kind; the file is called the same."""
    is_network: bool
    """Whether it joins nodes."""
    counters: Counters = "pcie"
    """Columns of the telemetry that count its bytes, where it is inside a node."""
    has_reduction: bool = False
    """Whether its switches reduce by default (NVLink SHARP)."""
    launch_s: Positive
    """Start and end of a collective that crosses it. Unit: s."""
    latency_s: Positive
    """One hop of a ring with the protocol Simple. Unit: s."""
    tree_latency: Positive
    """Latency of one hop of a tree over that of a ring."""
    reduction_s: Positive
    """Latency of a reduction in the switches. Unit: s."""
    peer_s: Annotated[float, Field(ge=0)]
    """What each further peer adds to an all-to-all. Unit: s."""
    efficiency: Fraction
    """Bandwidth a ring reaches over that of the link."""
    tree_efficiency: Fraction
    """Bandwidth a tree reaches over that of a ring."""
    reduction_efficiency: Fraction
    """Bandwidth a reduction in the switches reaches over that of the link."""
    exchange_efficiency: Fraction
    """Bandwidth of all-to-all and send/recv over that of the link."""
    plateau: Annotated[float, Field(ge=1)] = 1.0
    """Factor on the latency of a ring all-reduce with Simple."""
    bend: Positive
    """How latency `a` and transfer `x` add up to `(a**bend + x**bend) ** (1 / bend)`: 1 is their sum, more is a
    pipeline that hides one behind the other, less is one that fills slowly."""
    protocols: dict[str, Protocol] = {}
    """Protocols other than Simple, by name."""
    usable: dict[int, Fraction] = {}
    """Share of a GPU's links that a group of so many can use, where no switch joins them; 1 where not listed."""
    no_faster_than: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None
    """Kind of link with the same adapters and library whose switches are no slower: no time is below its. The two are
    fitted to other clusters, collectives and sizes. None: nothing is known to bound it."""
    partial_ring_bandwidth: Annotated[Quantity, unit_is("byte/s")] | None = None
    """What all rings of a node reach together, where GPUs share adapters and each ring has some of the node's GPUs, but
    more than one: it leaves by another GPU than it enters, and the two have no adapter in common. A faster adapter is
    reached whole, by rings that leave and enter by it. None: all of it."""
    package: Package | None = None
    """A better joined part of the node."""
    sigma: Positive
    """Standard deviation of the logarithm of measured over modelled time, robust. Unit: 1."""
    min_bytes: Annotated[int, Field(gt=0)]
    """Smallest collective it was fitted to. Unit: byte."""
    max_bytes: Annotated[int, Field(gt=0)]
    """Largest collective it was fitted to. Unit: byte."""
    max_gpus: Annotated[int, Field(gt=0)]
    """Largest group it was fitted to."""
    prior: dict[str, Positive] = {}
    """Parameters that are fitted, with what was expected of them before: where every fit begins and is drawn to, so
    that it neither depends on the last one nor moves what its rows say nothing about."""
    fitted_to: str
    """What they were fitted to, and how well it went."""
    source: Annotated[str, Field(min_length=8)]
    """Where priors and parameters that are not fitted come from, and what is assumed."""


class Overlap(Strict):
    """What computation loses to collectives overlapped with it."""

    compute_slowdown: Annotated[Quantity, unit_is("1")]
    """Time a kernel takes longer, over its time alone: shared SMs and memory bandwidth."""


@cache
def load_overlap(config: Path) -> Overlap:
    """Return what computation loses to collectives overlapped with it.

    Raises:
        UserError: If the file is missing or wrong.
    """
    return read(Overlap, config / "collectives" / "overlap.yaml")


@cache
def load_link(name: str, config: Path) -> Link:
    """Return a kind of link.

    Args:
        name: Of the kind.
        config: Folder of the configuration.

    Raises:
        UserError: If there is none of that name, naming the nearest, or its file is wrong.
    """
    folder = config / "collectives" / "links"
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    if name not in known:
        raise UserError(f"unknown link {name!r} in {folder}{nearest(name, known) if known else ''}")
    return read_named(Link, folder / f"{name}.yaml")
