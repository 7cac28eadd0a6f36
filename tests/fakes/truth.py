"""What the GPUs of a scenario really do, at times of the monotonic clock."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.fakes.scenario import Gpu


@dataclass(frozen=True)
class Truth:
    """Ground truth of the GPUs; `time_s` turns a monotonic time in ns into scenario time."""

    gpus: list[Gpu]
    time_s: Callable[[int], float]

    def power_w(self, gpu: int, t_ns: int) -> float:
        """Return the power at a time. Unit: W."""
        one = self.gpus[gpu]
        return one.idle_w + (one.max_w - one.idle_w) * one.effective_load().value(self.time_s(t_ns))

    def energy_j(self, gpu: int, from_ns: int, to_ns: int) -> float:
        """Return the energy of a window. Unit: J (of scenario time)."""
        one, from_s, to_s = self.gpus[gpu], self.time_s(from_ns), self.time_s(to_ns)
        load = one.effective_load()
        swing_w = one.max_w - one.idle_w
        return one.idle_w * (to_s - from_s) + swing_w * (load.integral(to_s) - load.integral(from_s))

    def package_power_w(self, package: int, t_ns: int) -> float:
        """Return the power of all dies of an AMD package at a time. Unit: W."""
        return sum(self.power_w(i, t_ns) for i, gpu in enumerate(self.gpus) if gpu.package == package)

    def package_energy_j(self, package: int, from_ns: int, to_ns: int) -> float:
        """Return the energy of all dies of an AMD package in a window. Unit: J (of scenario time)."""
        return sum(self.energy_j(i, from_ns, to_ns) for i, gpu in enumerate(self.gpus) if gpu.package == package)

    def temp_c(self, gpu: int, t_ns: int) -> float:
        """Return the temperature of the die. Unit: C."""
        one = self.gpus[gpu]
        return one.inlet_c + one.resistance_c_per_w * self._heat_w(one, self.time_s(t_ns), one.tau_s)

    def memory_temp_c(self, gpu: int, t_ns: int) -> float:
        """Return the temperature of the memory. Unit: C."""
        one = self.gpus[gpu]
        return one.inlet_c + one.memory_resistance_c_per_w * self._heat_w(one, self.time_s(t_ns), one.memory_tau_s)

    def throttled_share(self, gpu: int, cause: str, from_ns: int, to_ns: int) -> float:
        """Return the share of a window slowed down for `cause`, 0-1."""
        return self.gpus[gpu].waves()[cause].mean(self.time_s(from_ns), self.time_s(to_ns))

    def nvlink_tx_bytes(self, gpu: int, from_ns: int, to_ns: int) -> float:
        """Return what all links of a GPU sent in a window. Unit: bytes."""
        return self._traffic(gpu, self.gpus[gpu].nvlink_tx_bytes_per_s, from_ns, to_ns)

    def nvlink_rx_bytes(self, gpu: int, from_ns: int, to_ns: int) -> float:
        """Return what all links of a GPU received in a window. Unit: bytes."""
        return self._traffic(gpu, self.gpus[gpu].nvlink_rx_bytes_per_s, from_ns, to_ns)

    def pcie_tx_bytes(self, gpu: int, from_ns: int, to_ns: int) -> float:
        """Return what a GPU sent over PCIe in a window. Unit: bytes."""
        return self._traffic(gpu, self.gpus[gpu].pcie_tx_bytes_per_s, from_ns, to_ns)

    def pcie_rx_bytes(self, gpu: int, from_ns: int, to_ns: int) -> float:
        """Return what a GPU received over PCIe in a window. Unit: bytes."""
        return self._traffic(gpu, self.gpus[gpu].pcie_rx_bytes_per_s, from_ns, to_ns)

    def _traffic(self, gpu: int, bytes_per_s: float, from_ns: int, to_ns: int) -> float:
        load = self.gpus[gpu].effective_load()
        return bytes_per_s * (load.integral(self.time_s(to_ns)) - load.integral(self.time_s(from_ns)))

    @staticmethod
    def _heat_w(gpu: Gpu, t_s: float, tau_s: float) -> float:
        return gpu.idle_w + (gpu.max_w - gpu.idle_w) * gpu.effective_load().response(t_s, tau_s)
