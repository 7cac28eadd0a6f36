"""Ground truth of the GPUs of a scenario, at times of the monotonic clock."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.fakes.scenario import Gpu


@dataclass(frozen=True)
class Truth:
    """Ground truth of GPUs.

    Attributes:
        gpus: GPUs of the scenario.
        time_s: Returns the scenario time in s at a monotonic time in ns.
    """

    gpus: list[Gpu]
    time_s: Callable[[int], float]

    def power_w(self, gpu: int, t_ns: int) -> float:
        """Return the power of a GPU at a time. Unit: W."""
        facts = self.gpus[gpu]
        return facts.idle_w + (facts.max_w - facts.idle_w) * facts.effective_load().value(self.time_s(t_ns))

    def energy_j(self, gpu: int, from_ns: int, to_ns: int) -> float:
        """Return the energy of a GPU in a window. Unit: J (of scenario time)."""
        facts, from_s, to_s = self.gpus[gpu], self.time_s(from_ns), self.time_s(to_ns)
        load = facts.effective_load()
        swing_w = facts.max_w - facts.idle_w
        return facts.idle_w * (to_s - from_s) + swing_w * (load.integral(to_s) - load.integral(from_s))

    def package_power_w(self, package: int, t_ns: int) -> float:
        """Return the power of all dies of an AMD package at a time. Unit: W."""
        return sum(self.power_w(i, t_ns) for i, gpu in enumerate(self.gpus) if gpu.package == package)

    def package_energy_j(self, package: int, from_ns: int, to_ns: int) -> float:
        """Return the energy of all dies of an AMD package in a window. Unit: J (of scenario time)."""
        return sum(self.energy_j(i, from_ns, to_ns) for i, gpu in enumerate(self.gpus) if gpu.package == package)

    def temp_c(self, gpu: int, t_ns: int) -> float:
        """Return the temperature of the die. Unit: degC."""
        facts = self.gpus[gpu]
        return facts.inlet_c + facts.resistance_c_per_w * self._delayed_power_w(facts, t_ns, facts.tau_s)

    def memory_temp_c(self, gpu: int, t_ns: int) -> float:
        """Return the temperature of the memory. Unit: degC."""
        facts = self.gpus[gpu]
        return facts.inlet_c + facts.memory_resistance_c_per_w * self._delayed_power_w(facts, t_ns, facts.memory_tau_s)

    def throttled_share(self, gpu: int, cause: str, from_ns: int, to_ns: int) -> float:
        """Return the share of a window that is throttled for `cause`, 0-1."""
        return self.gpus[gpu].waves()[cause].mean(self.time_s(from_ns), self.time_s(to_ns))

    def nvlink_tx_bytes(self, gpu: int, from_ns: int, to_ns: int) -> float:
        """Return the bytes that all links of a GPU sent in a window."""
        return self._traffic(gpu, self.gpus[gpu].nvlink_tx_bytes_per_s, from_ns, to_ns)

    def nvlink_rx_bytes(self, gpu: int, from_ns: int, to_ns: int) -> float:
        """Return the bytes that all links of a GPU received in a window."""
        return self._traffic(gpu, self.gpus[gpu].nvlink_rx_bytes_per_s, from_ns, to_ns)

    def pcie_tx_bytes(self, gpu: int, from_ns: int, to_ns: int) -> float:
        """Return the bytes that a GPU sent over PCIe in a window."""
        return self._traffic(gpu, self.gpus[gpu].pcie_tx_bytes_per_s, from_ns, to_ns)

    def pcie_rx_bytes(self, gpu: int, from_ns: int, to_ns: int) -> float:
        """Return the bytes that a GPU received over PCIe in a window."""
        return self._traffic(gpu, self.gpus[gpu].pcie_rx_bytes_per_s, from_ns, to_ns)

    def _traffic(self, gpu: int, bytes_per_s: float, from_ns: int, to_ns: int) -> float:
        load = self.gpus[gpu].effective_load()
        return bytes_per_s * (load.integral(self.time_s(to_ns)) - load.integral(self.time_s(from_ns)))

    def _delayed_power_w(self, gpu: Gpu, t_ns: int, tau_s: float) -> float:
        """Return the power behind a first-order low pass. Unit: W."""
        return gpu.idle_w + (gpu.max_w - gpu.idle_w) * gpu.effective_load().response(self.time_s(t_ns), tau_s)
