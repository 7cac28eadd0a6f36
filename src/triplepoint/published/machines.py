"""Cloud instances and supercomputers that published tables name instead of a network."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """A kind of node with a known name.

    Attributes:
        pattern: Pattern of the name, in lower case.
        chips: Chips of its GPUs, as named in `config/gpus/`.
        gpus_per_node: GPUs per node.
        network: Network adapters of a node, in the words of a cell.
    """

    pattern: str
    chips: tuple[str, ...]
    gpus_per_node: int
    network: str


_CLOUD = (
    # AWS: EC2 User Guide, accelerated computing instances, network specifications.
    Machine(r"p3\.16xlarge", ("v100",), 8, "25 Gb/s Ethernet per node"),
    Machine(r"p3dn\.24xlarge", ("v100",), 8, "100 Gb/s per node"),
    Machine(r"p4de?(?:\.24xlarge)?", ("a100",), 8, "4x100 Gb/s"),
    Machine(r"p5(?:\.48xlarge)?", ("h100",), 8, "3200 Gb/s per node"),
    Machine(r"p5en?(?:\.48xlarge)?", ("h200",), 8, "3200 Gb/s per node"),
    Machine(r"p6-b200(?:\.48xlarge)?", ("b200",), 8, "8x400 Gb/s"),
    # Google Cloud: Compute Engine, GPU machine types, adapters for GPU traffic.
    Machine(r"a2-(?:ultra|high)gpu-8g", ("a100",), 8, "100 Gb/s Ethernet per node"),
    Machine(r"a3-highgpu-8g|(?:gpudirect-)?tcpx", ("h100",), 8, "4x200 Gb/s Ethernet"),
    Machine(r"a3-megagpu-8g|(?:gpudirect-)?tcpxo|fastrak", ("h100",), 8, "8x200 Gb/s Ethernet"),
    Machine(r"a3-ultragpu-8g", ("h200",), 8, "8x400 Gb/s RoCE"),
    Machine(r"a4-highgpu-8g", ("b200",), 8, "8x400 Gb/s RoCE"),
    # Azure: virtual machine sizes, GPU accelerated, ND family.
    Machine(r"(?:standard_)?nd96a?m?sr_(?:a100_)?v4", ("a100",), 8, "8x200 Gb/s InfiniBand"),
    Machine(r"(?:standard_)?nd96isr_h100_v5", ("h100",), 8, "8x400 Gb/s InfiniBand"),
    Machine(r"(?:standard_)?nd96isr_h200_v5", ("h200",), 8, "8x400 Gb/s InfiniBand"),
    Machine(r"(?:standard_)?nd96isr_mi300x_v5", ("mi300x",), 8, "8x400 Gb/s InfiniBand"),
)
_SITES = (
    # Oak Ridge, Frontier User Guide; LUMI documentation, LUMI-G: eight GCDs and four Slingshot ports of a node.
    Machine(r"frontier|lumi-g|lumi", ("mi250x",), 8, "4x200 Gb/s"),
    # Oak Ridge, Summit User Guide: dual-rail EDR.
    Machine(r"summit", ("v100",), 6, "2x100 Gb/s InfiniBand"),
    # Juelich, JUWELS documentation, Booster.
    Machine(r"juwels[ -]booster", ("a100",), 4, "4x200 Gb/s InfiniBand"),
    # NERSC documentation, Perlmutter, GPU nodes.
    Machine(r"perlmutter", ("a100",), 4, "4x200 Gb/s"),
    # Juelich, JUPITER technical overview, Booster; CSCS and Isambard documentation, GH200 nodes.
    Machine(r"jupiter(?:[ -]booster)?", ("gh200",), 4, "4x200 Gb/s InfiniBand"),
    Machine(r"alps|isambard-ai", ("gh200",), 4, "4x200 Gb/s"),
    # Barcelona Supercomputing Center, MareNostrum 5 user guide, accelerated partition.
    Machine(r"marenostrum[ -]?5", ("h100",), 4, "4x200 Gb/s InfiniBand"),
    # NVIDIA, DGX SuperPOD reference architectures for A100 and H100.
    Machine(r"selene", ("a100",), 8, "8x200 Gb/s InfiniBand"),
    Machine(r"eos", ("h100",), 8, "8x400 Gb/s InfiniBand"),
)
MACHINES = _CLOUD + _SITES
"""All known machines, with rates in one direction. Source: documents of the operators, named above the entries."""

_CLOUD_NAME = re.compile(
    r"(?<![\w.-])(?:(?:standard_)?n[cd]\d+[a-z0-9]*_\w+|[ag]\d+x?-\w+gpu-\d+g|bm\.gpu[\w.-]*|"
    r"[pg]\d+[a-z]*(?:-\w+)?\.\d*x?large)(?![\w.])",
    re.IGNORECASE,
)
"""Names of cloud instances, known and unknown. Numbers in them are not rates."""


def find_machines(low: str) -> tuple[Machine, ...]:
    """Return the machines that a text in lower case names."""
    return tuple(machine for machine in MACHINES if _whole_words(machine.pattern).search(low))


def without_machines(text: str, machines: tuple[Machine, ...]) -> str:
    """Remove names of machines and cloud instances from a text, so that no number in them is read as a rate."""
    return _CLOUD_NAME.sub(" ", _without_known(text, machines))


def other_instances(low: str, machines: tuple[Machine, ...]) -> tuple[str, ...]:
    """Return the cloud instances in a text that are not known machines."""
    return tuple(_CLOUD_NAME.findall(_without_known(low, machines)))


def _without_known(text: str, machines: tuple[Machine, ...]) -> str:
    for machine in machines:
        text = _whole_words(machine.pattern).sub(" ", text)
    return text


def _whole_words(pattern: str) -> "re.Pattern[str]":
    return re.compile(rf"(?<![\w.-])(?:{pattern})(?![\w.]|-(?!class|like))", re.IGNORECASE)
