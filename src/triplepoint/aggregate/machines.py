"""Machines of a run, from the configuration: capacity of links, and positions of GPUs in the airflow."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from triplepoint.config.catalogue import Catalogue
from triplepoint.config.cluster import ClusterConfig
from triplepoint.config.gpu import GpuConfig
from triplepoint.errors import UserError
from triplepoint.simulate.collectives.links import load_link
from triplepoint.simulate.heat.nodes import airflow_of
from triplepoint.simulate.heat.parameters import AirflowConfig


class Capacity(NamedTuple):
    """Capacity of the links of a GPU or node.

    Attributes:
        link: nvlink, xgmi, pcie or infiniband.
        bytes_per_s: Capacity in one direction, sum over the links; None if not known. Unit: byte/s.
        source: Source of the capacity, or why it is not known.
        num_links: Number of adapters; None for GPUs and if not known.
    """

    link: str
    bytes_per_s: float | None
    source: str
    num_links: int | None = None


@dataclass(frozen=True)
class Machines:
    """Cluster and GPU type of a run.

    Attributes:
        cluster: The cluster; None if its file no longer exists.
        gpu: The GPU type, with the chassis that the cluster names.
        config: Folder of the configuration.
    """

    cluster: ClusterConfig | None
    gpu: GpuConfig
    config: Path

    def links_of_gpu(self) -> list[Capacity]:
        """Return the links of one GPU: the scale-up link, and PCIe if that is another link."""
        gpu, where = self.gpu, f"config/gpus/{self.gpu.name}.yaml"
        cluster_link = self.cluster.scale_up_link if self.cluster else None
        scale_up = load_link(cluster_link or gpu.scale_up_link, self.config).counters
        links = [Capacity(scale_up, gpu.scale_up_bandwidth.value, f"{where}, scale_up_bandwidth")]
        if scale_up == "pcie":
            return links
        if gpu.pcie_bandwidth is None:
            return [*links, Capacity("pcie", None, f"{where} has no pcie_bandwidth")]
        return [*links, Capacity("pcie", gpu.pcie_bandwidth.value, f"{where}, pcie_bandwidth")]

    def links_of_node(self) -> Capacity:
        """Return the network adapters of one node."""
        cluster = self.cluster
        if cluster is None:
            return Capacity("infiniband", None, "the cluster has no file in config/clusters/")
        where = f"config/clusters/{cluster.name}.yaml"
        if cluster.nics_per_node is None or cluster.nic_bandwidth is None:
            return Capacity("infiniband", None, f"{where} has no nics_per_node or no nic_bandwidth")
        num, bandwidth = int(cluster.nics_per_node.value), cluster.nic_bandwidth.value
        return Capacity("infiniband", num * bandwidth, f"{where}, nics_per_node times nic_bandwidth", num)

    def place_of(self, device: int) -> dict[str, Any]:
        """Return the position of a GPU in the airflow, by column of `gpus`; empty if the chassis is not known.

        Args:
            device: Number of the GPU on its node, in the driver's order.
        """
        airflow = self._airflow
        if airflow is None or device >= airflow.num_devices:
            return {}
        row = next(index for index, devices in enumerate(airflow.rows) if device in devices)
        last = len(airflow.rows) - 1
        place = None if last == 0 else {0: "front", last: "rear"}.get(row, "middle")
        columns = {"airflow": airflow.name, "airflow_row": row, "airflow_lane": airflow.rows[row].index(device)}
        return columns | {"airflow_place": place}

    @property
    def _airflow(self) -> AirflowConfig | None:
        return None if self.cluster is None else _airflow_of(self.cluster.name, self.config)


def read_machines(cluster: str, gpu: GpuConfig, config: Path) -> Machines:
    """Return the machines of a run.

    Args:
        cluster: Name of the cluster.
        gpu: GPU type.
        config: Folder of the configuration.
    """
    cluster_config = _cluster_of(cluster, config)
    if cluster_config is not None and cluster_config.chassis:
        gpu = gpu.model_copy(update={"chassis": cluster_config.chassis})
    return Machines(cluster_config, gpu, config)


@cache
def _catalogue(config: Path) -> Catalogue:
    return Catalogue(config)


@cache
def _cluster_of(name: str, config: Path) -> ClusterConfig | None:
    """Return a cluster; None if its file no longer exists, which may be so for old measurements."""
    return _catalogue(config).cluster(name) if (config / "clusters" / f"{name}.yaml").is_file() else None


@cache
def _airflow_of(name: str, config: Path) -> AirflowConfig | None:
    """Return the airflow of a cluster's nodes; None if it is not known or does not fit their number of GPUs."""
    catalogue = _catalogue(config)
    cluster = catalogue.cluster(name)
    gpu = catalogue.gpu_of(cluster)
    if gpu is None:
        return None
    try:
        return airflow_of(cluster.conditions.airflow, gpu, cluster.gpus_per_node, config)
    except UserError:
        return None
