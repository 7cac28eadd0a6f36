"""The fabric of a cluster that is known only by its GPU type and some words about its network."""

from functools import lru_cache
from pathlib import Path
from typing import Annotated

from pydantic import Field

from triplepoint.config.base import NAME_PATTERN, Quantity, Strict, unit_is
from triplepoint.config.gpu import GpuConfig
from triplepoint.config.yaml_file import read
from triplepoint.simulate.fabric import Fabric, Level
from triplepoint.simulate.spelling import Network


class UsualNetwork(Strict):
    """The network a GPU type usually comes with."""

    gpu: Annotated[str, Field(pattern=NAME_PATTERN)]
    """GPU type, a file in `config/gpus/`."""
    gpus_per_node: Annotated[int, Field(gt=0)]
    """Devices of a node, all joined by NVLink or xGMI."""
    node_bandwidth: Annotated[Quantity, unit_is("byte/s")]
    """Bandwidth of all adapters of a node, one direction."""


class Latencies(Strict):
    """Time of a message of no size."""

    scale_up: Annotated[Quantity, unit_is("s")]
    """Within a node."""
    network: Annotated[Quantity, unit_is("s")]
    """Between nodes."""


class Networks(Strict):
    """What `config/calibration/networks.yaml` holds."""

    networks: list[UsualNetwork]
    """By GPU type; the first stands for types that are not named."""
    latency: Latencies
    """Where the collective tables do not say."""


@lru_cache(maxsize=256)
def build_fabric(gpu_name: str, scale_up_bandwidth: float, num_gpus: int, said: Network, config: Path) -> Fabric:
    """Return the levels of a cluster.

    Args:
        gpu_name: GPU type.
        scale_up_bandwidth: NVLink or xGMI bandwidth of one GPU, one direction. Unit: byte/s.
        num_gpus: In the job.
        said: What is known about the network; the usual one of the GPU type stands in for the rest.
        config: Folder of the configuration.
    """
    networks = _read(config)
    usual = next((one for one in networks.networks if one.gpu == gpu_name), networks.networks[0])
    inner = said.domain_size or usual.gpus_per_node
    bandwidth = said.bandwidth or usual.node_bandwidth.value
    if not (said.bandwidth and said.is_per_gpu):
        bandwidth /= usual.gpus_per_node
    levels = [Level("nvlink", inner, scale_up_bandwidth, networks.latency.scale_up.value)]
    if num_gpus > inner:
        levels.append(Level("rail", num_gpus, bandwidth, networks.latency.network.value, said.has_reduction))
    return Fabric(tuple(levels))


def fabric_of(gpu: GpuConfig, num_gpus: int, said: Network, config: Path) -> Fabric:
    """Return the levels of a cluster of one GPU type, as `build_fabric` does."""
    return build_fabric(gpu.name, gpu.scale_up_bandwidth.value, num_gpus, said, config)


@lru_cache(maxsize=4)
def _read(config: Path) -> Networks:
    return read(Networks, config / "calibration" / "networks.yaml")
