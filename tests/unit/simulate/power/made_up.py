"""A GPU whose power can be counted by hand."""

from triplepoint.simulate.power.parameters import ClockConfig, Estimate, NodePowerConfig, PowerConfig


def estimate(value: float, unit: str) -> Estimate:
    return Estimate(value=value, unit=unit, source="made up for tests", sigma=0)


def power(**changes: float) -> PowerConfig:
    """At 2000 MHz and 1 V: 10 + 20 at rest, 100 leaking at 60 degC; 50 clocks, 400 tensor, 200 SM, 80 HBM, 40 link."""
    watts = {
        "memory_idle": 20.0,
        "base": 10.0,
        "leakage": 100.0,
        "clock_tree": 50.0,
        "tensor": 400.0,
        "sm": 200.0,
        "hbm": 80.0,
        "link": 40.0,
        "power_limit": 500.0,
        "excursion_limit": 700.0,
        "least_limit": 60.0,
    }
    ratios = {"polling_share": 0.2, "leakage_voltage_exponent": 2.0, "zeros_share": 0.5, "leakage_spread": 0.1}
    return PowerConfig(
        name="made-up",
        clocks=clocks(),
        leakage_temperature=estimate(60, "degC"),
        clock_rise=estimate(changes.pop("clock_rise", 0.05), "1/s"),
        calibrated_clock=estimate(1800, "MHz"),
        leakage_growth=estimate(changes.pop("leakage_growth", 0.01), "1/K"),
        **{name: estimate(changes.get(name, value), "W") for name, value in watts.items()},
        **{name: estimate(changes.get(name, value), "1") for name, value in ratios.items()},
    )


def clocks() -> ClockConfig:
    """0.5 V up to 1000 MHz, then straight up to 1 V at 2000 MHz."""
    mhz = {"min_clock": 500.0, "max_clock": 2000.0, "clock_step": 10.0, "knee_clock": 1000.0}
    volt = {"min_voltage": 0.5, "max_voltage": 1.0}
    return ClockConfig(
        **{name: estimate(value, "MHz") for name, value in mhz.items()},
        **{name: estimate(value, "V") for name, value in volt.items()},
    )


def node() -> NodePowerConfig:
    watts = {
        "cpu_idle": 100.0,
        "cpu_busy": 300.0,
        "dram": 50.0,
        "nic": 20.0,
        "storage": 10.0,
        "switch": 200.0,
        "board": 60.0,
        "fan_idle": 100.0,
        "fan_full": 800.0,
    }
    return NodePowerConfig(
        name="made-up",
        converter_efficiency=estimate(0.8, "1"),
        rectifier_efficiency=estimate(0.5, "1"),
        **{name: estimate(value, "W") for name, value in watts.items()},
    )
