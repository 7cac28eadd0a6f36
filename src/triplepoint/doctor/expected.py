"""What a node should be like, from the description of its cluster."""

from dataclasses import dataclass

from triplepoint.config.cluster import ClusterConfig
from triplepoint.config.gpu import GpuConfig


@dataclass(frozen=True)
class Expected:
    """What is said of a cluster; nothing where a machine is checked as it is.

    Attributes:
        cluster: Its nodes.
        gpu: Its GPU type; None on cpu.
    """

    cluster: ClusterConfig | None = None
    gpu: GpuConfig | None = None

    @property
    def has_gpus(self) -> bool | None:
        """Whether nodes have GPUs; None where nothing is said."""
        return None if self.cluster is None else self.cluster.device != "cpu"

    @property
    def where(self) -> str:
        """File to change where the description is wrong."""
        return f"config/clusters/{self.cluster.name}.yaml" if self.cluster else "the configuration"
