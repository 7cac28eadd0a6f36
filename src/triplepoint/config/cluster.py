"""Clusters, `config/clusters/*.yaml`: nodes, links and network, cooling, power limits and faults."""

import re
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from triplepoint.config.base import NAME_PATTERN, Devices, Quantity, Strict, parse, unit_is
from triplepoint.units import BITS_PER_BYTE, S_PER_YEAR

GPU_PATTERN = r"^node\d+\.gpu\d+$"
"""Pattern of the name of a single GPU, such as `node1.gpu3`; both numbers count from 0."""

GpuName = Annotated[str, Field(pattern=GPU_PATTERN)]
Topology = Literal["fat_tree", "rail_optimised", "dragonfly"]


class ConditionsConfig(Strict):
    """Inlet, cooling, power limits and faults. The defaults are the conditions of the step-time calibration."""

    inlet_temp_c: Annotated[float, Field(ge=0, le=60)] = 24.0
    """Temperature of air or liquid at the inlet of every node; published nodes have 18 to 37 degC. Unit: degC."""
    inlet_sigma_k: Annotated[float, Field(ge=0, le=20)] = 4.0
    """Standard deviation of the inlet temperature, for uncertainty intervals; most published inlets are 20 to 28 degC.
    Unit: K."""
    coolant: Literal["air", "liquid", "ideal"] = "air"
    """Coolant of the GPUs. `ideal` keeps dies at the inlet temperature without fans, to find out what heat costs."""
    airflow: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None
    """Order of the GPUs in the air stream, a file in `config/heat/airflow/`. None: that of the chassis."""
    power_limit_w: Annotated[float, Field(gt=0)] | None = None
    """Power limit of every GPU, between the lowest that the driver accepts and the default of the GPU type. `.inf`: no
    limit, to find out what limits cost. None: the default of the GPU type. Unit: W."""
    power_limits_w: dict[GpuName, Annotated[float, Field(gt=0)]] = {}
    """Power limits of single GPUs, such as `node1.gpu3: 650`, as `triplepoint recommend` prints them. Unit: W."""
    bad_contact: dict[GpuName, Annotated[float, Field(ge=1, le=20)]] = {}
    """Single GPUs with bad contact to their heat sink: factor on the thermal resistance of the die, such as
    `node1.gpu6: 7`."""
    contact: dict[GpuName, Annotated[float, Field(ge=0.3, le=20)]] = {}
    """Single GPUs with a known contact to their heat sink: factor on the thermal resistance of the die. For the others
    the simulator draws it from the spread of parts. `triplepoint calibrate --heat` writes this key."""
    leakage: dict[GpuName, Annotated[float, Field(ge=0.2, le=5)]] = {}
    """Single GPUs with a known leakage: factor on that of the GPU type. For the others the simulator draws it from the
    spread of parts."""
    blocked_airflow: dict[GpuName, Annotated[float, Field(ge=0.05, le=1)]] = {}
    """Single GPUs with a blocked air stream: share of the air that reaches them. Needs `coolant: air`."""
    starts_at_rest: bool = False
    """Whether simulated runs start on idle, cool nodes, so that the first steps have higher clocks. Otherwise nodes
    start at the steady temperature of the job, as after a long warm-up."""
    braked_nodes: list[Annotated[int, Field(ge=0)]] = []
    """Nodes with the power brake asserted, as after the failure of a power supply."""

    @property
    def slows_gpus(self) -> bool:
        """Whether a power limit or a fault can throttle clocks, whatever runs."""
        return self.power_limit_w is not None or bool(self.power_limits_w) or self != self.without_faults

    def with_limits(self, limits_w: Mapping[str, float]) -> Self:
        """Return these conditions with power limits of single GPUs, by name, added or replaced. Unit: W."""
        return self.model_copy(update={"power_limits_w": {**self.power_limits_w, **limits_w}}) if limits_w else self

    @property
    def without_faults(self) -> Self:
        """These conditions without faults: same inlet, cooling and power limits."""
        return self.model_copy(update={"bad_contact": {}, "blocked_airflow": {}, "braked_nodes": []})

    @model_validator(mode="after")
    def _check_coolant(self) -> Self:
        if self.blocked_airflow and self.coolant != "air":
            raise ValueError(f"blocked_airflow needs coolant: air, found coolant: {self.coolant}")
        return self


USUAL = ConditionsConfig()
"""Conditions under which the step times were calibrated."""


def place_of(gpu: str) -> tuple[int, int]:
    """Return the numbers of node and GPU in a name such as `node1.gpu3`."""
    node, number = re.findall(r"\d+", gpu)
    return int(node), int(number)


_PCI_ADDRESS = r"^[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]$"
Slots = list[int] | dict[Annotated[str, Field(pattern=_PCI_ADDRESS)], int]
"""Physical slots of the devices of a node, in device order or by PCI address."""


class ClusterConfig(Strict):
    """Nodes of one kind and their network."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    """Name of the cluster; the file is called the same."""
    like: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None
    """Cluster whose keys this one inherits where it gives none, for example one that differs in its network only."""
    device: Literal["cpu", "cuda", "rocm"]
    """Device that the ranks compute on. On cpu, processes stand in for GPUs."""
    gpu: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None
    """GPU type, a file in `config/gpus/`; none on cpu."""
    chassis: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None
    """Kind of node: a file in `config/heat/airflow/` and one in `config/power/nodes/`. None: that of the GPU type."""
    num_nodes: Devices
    """Nodes in the cluster."""
    gpus_per_node: Devices
    """Devices the driver shows on each node: 8 on HGX, 8 GCDs for 4 MI250 packages; on cpu, the ranks allowed."""
    nodes_per_rack: Devices | None = None
    """Consecutive nodes that share a rack. If given, simulated runs report the power of the rack that draws most."""
    stack: Annotated[str, Field(min_length=1)] | None = None
    """Framework and version that simulated runs and predictions stand for: a name with the words of an entry of
    `config/calibration/stacks.yaml`. None: Megatron-Core r0.8. Launched runs have the stack of their engine."""
    executor: Literal["local", "slurm"]
    """How to launch gangs: on this machine, or through Slurm."""
    nics_per_node: Annotated[Quantity, unit_is("NIC")] | None = None
    """Network adapters that carry training traffic on each node."""
    nic_bandwidth: Annotated[Quantity, unit_is("byte/s")] | None = None
    """Bandwidth of one network adapter, one direction."""
    scale_up_link: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None
    """Kind of link inside a node, a file in `config/collectives/links/`. None: that of the GPU type.
    `triplepoint calibrate --collectives` writes a file measured on this cluster."""
    network_link: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None
    """Kind of link between nodes, a file in the same folder. None: infiniband."""
    nodes_per_domain: Annotated[int, Field(gt=0)] = 1
    """Nodes whose GPUs the scale-up link joins: 18 nodes of four GPUs in an NVL72."""
    topology: Topology | None = None
    """Topology of the network. `fat_tree`: all adapters of a few nodes share a leaf switch. `rail_optimised`: a leaf
    switch joins the adapters of one number of many nodes. `dragonfly`: groups of switches, each group joined to all
    others. None: `rail_optimised` if each GPU has its own adapter, else `fat_tree`."""
    gpus_per_leaf: Annotated[int, Field(gt=0)] | None = None
    """GPUs that reach each other without the spine, or within a group of a dragonfly. None: the GPUs of 32 nodes
    (`rail_optimised`), of 32 adapters (`fat_tree`) or of 512 adapters (`dragonfly`)."""
    oversubscription: Annotated[float, Field(ge=1, le=64)] = 1.0
    """Bandwidth into a leaf switch, or a dragonfly group, over the bandwidth out of it."""
    slots: Slots | None = None
    """Physical slot of each device of a node, the same on all nodes: in device order, or by PCI address
    (`0000:18:00.0`). It overrides the slots that driver and kernel report. Placement and heat maps use it."""
    slow_gpus: dict[GpuName, Annotated[float, Field(gt=0, le=1)]] = {}
    """Compute speed of single GPUs relative to the others, such as `node1.gpu3: 0.93`, for simulated runs."""
    conditions: ConditionsConfig = USUAL
    """Inlet, cooling, power limits and faults, for simulated runs."""
    time_limit_s: Annotated[float, Field(gt=0, le=S_PER_YEAR)] = 3600.0
    """Wall time after which a launch ends as `timeout`. Unit: s."""
    hang_timeout_s: Annotated[float, Field(gt=0, le=S_PER_YEAR)] = 300.0
    """Time without progress of any rank after which a launch ends as `timeout`. Unit: s."""

    fast_telemetry_period_s: Annotated[float, Field(ge=0.01, le=1.0)] = 0.05
    """Sampling period of the fast GPU sensors: power, energy, temperatures, clocks and throttling. The others are
    sampled every `telemetry_period_s` of the study. Unit: s."""

    @model_validator(mode="after")
    def _check(self) -> "ClusterConfig":
        if (self.device == "cpu") != (self.gpu is None):
            raise ValueError(
                f"device is {self.device!r} and gpu is {self.gpu!r}; name a gpu exactly when device is not cpu"
            )
        if isinstance(self.slots, list) and len(self.slots) != self.gpus_per_node:
            raise ValueError(f"slots lists {len(self.slots)} devices, gpus_per_node is {self.gpus_per_node}")
        per_gpu = ("bad_contact", "contact", "leakage", "power_limits_w", "blocked_airflow")
        values = {"slow_gpus": self.slow_gpus} | {key: getattr(self.conditions, key) for key in per_gpu}
        for key, gpus in values.items():
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
        """Compute speed of `slow_gpus` by (node, GPU of the node)."""
        return {place_of(name): speed for name, speed in self.slow_gpus.items()}

    @property
    def num_nics(self) -> int:
        """Number of network adapters of a node; where it is not given, one for each GPU."""
        return int(self.nics_per_node.value) if self.nics_per_node else self.gpus_per_node

    @property
    def num_gpus(self) -> int:
        """Devices in the cluster."""
        return self.num_nodes * self.gpus_per_node


def changed(cluster: ClusterConfig, **changes: object) -> ClusterConfig:
    """Return a cluster with keys changed, validated as its file is. Raises `UserError` if it is invalid."""
    return parse(ClusterConfig, cluster.model_dump() | changes, f"cluster {cluster.name}, changed")


def with_adapters(cluster: ClusterConfig, number: int, gbit_per_s: float) -> ClusterConfig:
    """Return a cluster with other network adapters.

    Args:
        cluster: The cluster to change.
        number: Adapters of a node.
        gbit_per_s: Bandwidth of one adapter, one direction. Unit: Gb/s.
    """
    link, source = cluster.network_link, "asked: what if a node had these adapters"
    if link in (None, "infiniband", "infiniband-shared"):
        # Adapters are shared where a node has fewer of them than GPUs.
        link = "infiniband" if number >= cluster.gpus_per_node else "infiniband-shared"
    return changed(
        cluster,
        nics_per_node={"value": number, "unit": "NIC", "source": source},
        nic_bandwidth={"value": gbit_per_s * 1e9 / BITS_PER_BYTE, "unit": "byte/s", "source": source},
        network_link=link,
    )
