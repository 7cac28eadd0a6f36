"""Scenarios of common nodes, to be adapted by tests."""

import secrets
from dataclasses import replace

from tests.fakes.scenario import Gpu, Scenario, Sensor, Vendor

HGX_BUSES = (0x18, 0x2A, 0x3A, 0x5D, 0x9A, 0xAB, 0xBA, 0xDB)
"""PCI buses of an 8-GPU HGX baseboard behind two CPU sockets, in the driver's order."""

HGX_MODULES = (3, 4, 1, 2, 7, 8, 5, 6)
"""Module (physical slot) of each GPU. Not in the driver's order, as on real boards."""


def _token() -> str:
    """Return 8 random hexadecimal digits for identifiers, so that samplers of two test runs tell their GPUs apart."""
    return secrets.token_hex(4)


def _power_limits(limit_w: float) -> dict[str, float]:
    """Return the fields of a GPU that cannot draw or be allowed more than a limit. Unit: W."""
    return {"max_w": limit_w, "limit_w": limit_w, "default_limit_w": limit_w, "max_limit_w": limit_w}


def _hgx(name: str, count: int, **changes: float) -> Scenario:
    token = _token()
    gpus = [
        Gpu(
            name=name,
            uuid=f"GPU-{token}-{index:04x}-2222-3333-444444444444",
            serial=f"165432100{index:04d}",
            pci_bus=HGX_BUSES[index],
            module_id=HGX_MODULES[index],
            numa_node=index // 4,
            instant=Sensor(period_s=0.1, window_s=0.025, phase_s=0.007 * index),
            average=Sensor(period_s=0.1, window_s=1.0, phase_s=0.007 * index),
            energy_phase_s=0.007 * index,
        )
        for index in range(count)
    ]
    return Scenario([replace(gpu, **changes) for gpu in gpus])  # type: ignore[arg-type]


def hgx_h200(count: int = 8) -> Scenario:
    """Return a node of H200 SXM GPUs: 700 W, 141 GB, 18 links."""
    return _hgx("NVIDIA H200", count)


def hgx_h100(count: int = 8) -> Scenario:
    """Return a node of H100 SXM GPUs: 700 W, 80 GB, 18 links."""
    return _hgx("NVIDIA H100 80GB HBM3", count, memory_bytes=80 * 2.0**30, used_memory_bytes=60 * 2.0**30)


def hgx_a100(count: int = 8) -> Scenario:
    """Return a node of A100 SXM GPUs: 400 W, 12 links, no GPM, nvmlDeviceGetPowerUsage gives the instant power."""
    return _hgx(
        "NVIDIA A100-SXM4-80GB",
        count,
        architecture=7,
        nvlinks=12,
        usage_is_average=0,
        memory_bytes=80 * 2.0**30,
        used_memory_bytes=60 * 2.0**30,
        **_power_limits(400.0),
    )


MI250_DIE = Gpu(
    name="AMD Instinct MI250",
    uuid="",
    serial="",
    idle_w=45.0,
    max_w=250.0,
    limit_w=250.0,
    default_limit_w=250.0,
    min_limit_w=0.0,
    max_limit_w=280.0,
    inlet_c=30.0,
    resistance_c_per_w=0.2,
    memory_resistance_c_per_w=0.15,
    max_sm_mhz=1700.0,
    idle_sm_mhz=800.0,
    throttled_sm_mhz=1200.0,
    memory_mhz=1600.0,
    memory_bytes=64 * 2.0**30,
    used_memory_bytes=40 * 2.0**30,
    nvlinks=0,
    energy_period_s=0.001,
    energy_unit_j=15.259e-6,
    instant=Sensor(period_s=0.001, window_s=0.01),
    average=Sensor(period_s=0.001, window_s=0.1),
    architecture=2,
)
"""One of the two dies of a package, with half of its power. Source of the energy unit (2^-16 J): documentation of ROCm.
"""


def mi250_node(packages: int = 4) -> Scenario:
    """Return a node of MI250 packages with two dies each.

    Only the primary die has power and energy, which are those of the package. HIP starts to count at another package
    than the driver.
    """
    num_dies, token = 2 * packages, _token()
    dies = [
        replace(
            MI250_DIE,
            uuid=f"{die:02x}ff740c-{token[:4]}-{token[4:]}-80{die:02x}-000000000000",
            serial=f"69221900{die:04d}",
            pci_bus=0x20 + 4 * die,
            module_id=die // 2,
            is_secondary_die=die % 2,
            package=die // 2,
            numa_node=die // 4,
            hip_id=(die + 2) % num_dies,
        )
        for die in range(num_dies)
    ]
    return Scenario(dies, Vendor.AMD, driver_version="6.10.5")


def mi300x_node(count: int = 8) -> Scenario:
    """Return a node of MI300X: one device per package, current power, xGMI counters, 750 W."""
    token = _token()
    gpus = [
        replace(
            MI250_DIE,
            name="AMD Instinct MI300X",
            uuid=f"{index:02x}ff74a1-{token[:4]}-{token[4:]}-80{index:02x}-000000000000",
            serial=f"69241000{index:04d}",
            idle_w=140.0,
            **_power_limits(750.0),
            resistance_c_per_w=0.07,
            memory_resistance_c_per_w=0.06,
            max_sm_mhz=2100.0,
            memory_bytes=192 * 2.0**30,
            nvlinks=7,
            nvlink_offset_bytes=1e12,
            pci_bus=HGX_BUSES[index],
            module_id=index,
            package=index,
            numa_node=index // 4,
            hip_id=index,
            architecture=3,
        )
        for index in range(count)
    ]
    return Scenario(gpus, Vendor.AMD, driver_version="6.12.12")
