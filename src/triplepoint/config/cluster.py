"""Clusters: `config/clusters/*.yaml`, and the conditions their nodes stand in."""

import re
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from triplepoint.config.base import NAME_PATTERN, Devices, Quantity, Strict, parse, unit_is
from triplepoint.units import BITS_PER_BYTE, S_PER_YEAR

GPU_PATTERN = r"^node\d+\.gpu\d+$"
"""How a single GPU is named, both counted from 0."""

GpuName = Annotated[str, Field(pattern=GPU_PATTERN)]
Topology = Literal["fat_tree", "rail_optimised", "dragonfly"]


class ConditionsConfig(Strict):
    """Room, cooling, limits and faults. As left out they are those that step times were calibrated under."""

    inlet_temp_c: Annotated[float, Field(ge=0, le=60)] = 24.0
    """Air or liquid at the inlet of every node; 18 to 37 degC were seen on public nodes. Unit: degC."""
    inlet_sigma_k: Annotated[float, Field(ge=0, le=20)] = 4.0
    """Standard deviation of the inlet, for intervals of temperatures; most public inlets are 20 to 28 degC. Unit: K."""
    coolant: Literal["air", "liquid", "ideal"] = "air"
    """What takes heat from the GPUs; ideal keeps dies at the inlet's temperature and needs no fans, to ask what heat
    costs."""
    airflow: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None
    """Which GPUs stand behind which, a file in `config/heat/airflow/`; that of the chassis if not given."""
    power_limit_w: Annotated[float, Field(gt=0)] | None = None
    """Power limit of every GPU, from the lowest that its driver takes to that of the GPU type, which it is if none is
    given; `.inf` for no limit, to ask what limits cost. Unit: W."""
    power_limits_w: dict[GpuName, Annotated[float, Field(gt=0)]] = {}
    """Single GPUs with a power limit of their own, such as `node1.gpu3: 650`; `triplepoint recommend` gives them.
    Unit: W."""
    bad_contact: dict[GpuName, Annotated[float, Field(ge=1, le=20)]] = {}
    """Single GPUs that touch their heat sink badly: factor on the die's resistance, such as `node1.gpu6: 7`."""
    contact: dict[GpuName, Annotated[float, Field(ge=0.3, le=20)]] = {}
    """Single GPUs whose contact to their sink is known: factor on the die's resistance. Others are drawn as parts
    differ. `triplepoint calibrate --heat` writes it."""
    leakage: dict[GpuName, Annotated[float, Field(ge=0.2, le=5)]] = {}
    """Single GPUs whose leakage is known: factor on that of the GPU type. Others are drawn as parts differ."""
    blocked_airflow: dict[GpuName, Annotated[float, Field(ge=0.05, le=1)]] = {}
    """Single GPUs that see only a share of their air, where they are cooled by air."""
    starts_at_rest: bool = False
    """Whether simulated runs begin on nodes that did nothing before: their first steps are cooler and clocks higher.
    Otherwise nodes are as warm as the job makes them in the end, as after a long warm-up."""
    braked_nodes: list[Annotated[int, Field(ge=0)]] = []
    """Nodes whose power brake is pulled, as after the failure of a power supply."""

    @property
    def slows_gpus(self) -> bool:
        """Whether a power limit or a fault throttles clocks, whatever runs."""
        return self.power_limit_w is not None or bool(self.power_limits_w) or self != self.without_faults

    def with_limits(self, limits_w: Mapping[str, float]) -> Self:
        """Return the same with power limits of single GPUs, by name, over those it has. Unit: W."""
        return self.model_copy(update={"power_limits_w": {**self.power_limits_w, **limits_w}}) if limits_w else self

    @property
    def without_faults(self) -> Self:
        """The same room, cooling and limits, nothing broken."""
        return self.model_copy(update={"bad_contact": {}, "blocked_airflow": {}, "braked_nodes": []})

    @model_validator(mode="after")
    def _check_coolant(self) -> Self:
        if self.blocked_airflow and self.coolant != "air":
            raise ValueError(f"blocked_airflow needs coolant: air, found coolant: {self.coolant}")
        return self


USUAL = ConditionsConfig()
"""What step times were calibrated under."""


def place_of(gpu: str) -> tuple[int, int]:
    """Return node and GPU of a name such as node1.gpu3."""
    node, number = re.findall(r"\d+", gpu)
    return int(node), int(number)


_PCI_ADDRESS = r"^[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]$"
Slots = list[int] | dict[Annotated[str, Field(pattern=_PCI_ADDRESS)], int]
"""Physical slots of a node's devices, in device order or by PCI address."""


class ClusterConfig(Strict):
    """Machines of one kind and how they are joined."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    """Name of the cluster; the file is called the same."""
    like: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None
    """Cluster whose keys this one has where it gives none: one that differs in its network only, say."""
    device: Literal["cpu", "cuda", "rocm"]
    """What the ranks compute on. On cpu, processes stand in for GPUs."""
    gpu: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None
    """GPU type, a file in `config/gpus/`; none on cpu."""
    chassis: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None
    """Kind of node, a file in `config/heat/airflow/` and one in `config/power/nodes/`; that of the GPU type if not
    given."""
    num_nodes: Devices
    """Nodes in the cluster."""
    gpus_per_node: Devices
    """Devices the driver shows on each node: 8 on HGX, 8 GCDs for 4 MI250 packages; on cpu, the ranks allowed."""
    nodes_per_rack: Devices | None = None
    """Nodes that share a rack, in order; where given, simulated runs say what the rack that takes most does."""
    stack: Annotated[str, Field(min_length=1)] | None = None
    """Software, framework and version, that simulated runs and predictions of them stand for: a name with the words of
    an entry of `config/calibration/stacks.yaml`. Not given: Megatron-Core r0.8. Launched runs have that of their
    engine."""
    executor: Literal["local", "slurm"]
    """How gangs are launched: on this machine, or through Slurm."""
    nics_per_node: Annotated[Quantity, unit_is("NIC")] | None = None
    """Network adapters that carry training traffic on each node."""
    nic_bandwidth: Annotated[Quantity, unit_is("byte/s")] | None = None
    """Bandwidth of one network adapter, one direction."""
    scale_up_link: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None
    """Kind of link inside a node, a file in `config/collectives/links/`; that of the GPU type if not given. One for the
    cluster is written by `triplepoint calibrate --collectives`."""
    network_link: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None
    """Kind of link between nodes, likewise; infiniband if not given."""
    nodes_per_domain: Annotated[int, Field(gt=0)] = 1
    """Nodes whose GPUs the scale-up link joins: 18 nodes of four GPUs in an NVL72."""
    topology: Topology | None = None
    """What the switches are: `fat_tree`, all adapters of few nodes under a leaf switch; `rail_optimised`, those of one
    number, of many nodes; `dragonfly`, groups of switches, each joined to all others. Not given: `rail_optimised` where
    each GPU has its own adapter, else `fat_tree`."""
    gpus_per_leaf: Annotated[int, Field(gt=0)] | None = None
    """GPUs that reach each other without the spine, or within a group of a dragonfly; if not given, those of 32 nodes
    where `rail_optimised`, of 32 adapters in a `fat_tree`, of 512 in a `dragonfly`."""
    oversubscription: Annotated[float, Field(ge=1, le=64)] = 1.0
    """Bandwidth into a leaf switch, or a group, over that out of it."""
    slots: Slots | None = None
    """Physical slot of each device of a node, where known: in device order, or by PCI address (`0000:18:00.0`), as on
    all nodes. It comes before what driver and kernel say; placement and heat maps use it."""
    slow_gpus: dict[GpuName, Annotated[float, Field(gt=0, le=1)]] = {}
    """Speed of computation of single GPUs against the others, such as `node1.gpu3: 0.93`; simulated runs heed it."""
    conditions: ConditionsConfig = USUAL
    """Room, cooling, power limit and faults; simulated runs heed them."""
    time_limit_s: Annotated[float, Field(gt=0, le=S_PER_YEAR)] = 3600.0
    """Wall time after which a launch is ended as `timeout`. Unit: s."""
    hang_timeout_s: Annotated[float, Field(gt=0, le=S_PER_YEAR)] = 300.0
    """Time without progress of any rank after which a launch is ended as `timeout`. Unit: s."""

    fast_telemetry_period_s: Annotated[float, Field(ge=0.01, le=1.0)] = 0.05
    """Time between samples of power, energy, temperatures, clocks and throttling of GPUs, whose sensors are fast; the
    rest is read every `telemetry_period_s` of the study. Unit: s."""

    @model_validator(mode="after")
    def _check(self) -> "ClusterConfig":
        if (self.device == "cpu") != (self.gpu is None):
            raise ValueError(
                f"device is {self.device!r} and gpu is {self.gpu!r}; name a gpu exactly when device is not cpu"
            )
        if isinstance(self.slots, list) and len(self.slots) != self.gpus_per_node:
            raise ValueError(f"slots lists {len(self.slots)} devices, gpus_per_node is {self.gpus_per_node}")
        named = {"slow_gpus": self.slow_gpus, "bad_contact": self.conditions.bad_contact}
        own = ("contact", "leakage", "power_limits_w", "blocked_airflow")
        for key, gpus in (named | {name: getattr(self.conditions, name) for name in own}).items():
            for name in gpus:
                node, gpu = place_of(name)
                if node >= self.num_nodes or gpu >= self.gpus_per_node:
                    raise ValueError(
                        f"{key} names {name}, the cluster has {self.num_nodes} nodes of {self.gpus_per_node} GPUs, "
                        "both counted from 0"
                    )
        if any(node >= self.num_nodes for node in self.conditions.braked_nodes):
            raise ValueError(
                f"braked_nodes names a node that does not exist; the cluster has {self.num_nodes} nodes, counted from 0"
            )
        return self

    @property
    def speeds(self) -> dict[tuple[int, int], float]:
        """The same by (node, GPU of the node)."""
        return {place_of(name): speed for name, speed in self.slow_gpus.items()}

    @property
    def num_gpus(self) -> int:
        """Devices in the cluster."""
        return self.num_nodes * self.gpus_per_node


def changed(cluster: ClusterConfig, **changes: object) -> ClusterConfig:
    """Return a cluster with keys changed, checked as its file is. Raises `UserError` if it is wrong."""
    return parse(ClusterConfig, cluster.model_dump() | changes, f"cluster {cluster.name}, changed")


def with_adapters(cluster: ClusterConfig, number: int, gbit_per_s: float) -> ClusterConfig:
    """Return a cluster with so many network adapters in a node, of so many Gb/s each."""
    link, source = cluster.network_link, "asked: what if a node had these adapters"
    if link in (None, "infiniband", "infiniband-shared"):
        # GPUs that have an adapter each share none.
        link = "infiniband" if number >= cluster.gpus_per_node else "infiniband-shared"
    return changed(
        cluster,
        nics_per_node={"value": number, "unit": "NIC", "source": source},
        nic_bandwidth={"value": gbit_per_s * 1e9 / BITS_PER_BYTE, "unit": "byte/s", "source": source},
        network_link=link,
    )
