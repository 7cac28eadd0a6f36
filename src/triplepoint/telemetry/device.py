"""The interface every sensor stands behind: the host, NVIDIA and AMD GPUs, and fakes of them."""

from abc import ABC, abstractmethod

from triplepoint.tables import SAMPLES

METRICS = tuple(c.name for c in SAMPLES.columns if c.name not in ("t_ns", "read_latency_ns", "device"))
"""Columns a device may fill; names, units and bounds stand in `tables.SAMPLES`."""


class Device(ABC):
    """One thing that is sampled: the host (`host`) or one GPU (`gpu0`, `gpu1`, ... in the driver's order)."""

    name: str
    """Value of the `device` column."""

    absent: dict[str, str]
    """Metrics of this kind of device that cannot be read here, each with the reason."""

    @abstractmethod
    def read(self) -> dict[str, float]:
        """Return the metrics read now, in the units of `tables.SAMPLES`; one that failed this time is left out."""

    def close(self) -> None:
        """Give the device back."""
        return
