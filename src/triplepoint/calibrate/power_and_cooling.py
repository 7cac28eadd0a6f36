"""Fit of power and cooling of a GPU type to a recording of one GPU, for `triplepoint calibrate --power`."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from triplepoint.calibrate.power import (
    COOLING,
    FITTED,
    HeatFit,
    KernelTable,
    PowerFit,
    StepLog,
    delayed,
    fit_heat,
    fit_power,
    simulate_log,
)
from triplepoint.calibrate.protocol import to_yaml
from triplepoint.calibrate.recording import read_kernel_table, read_step_log
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.gpu import GpuConfig
from triplepoint.errors import UserError
from triplepoint.simulate.heat.parameters import CoolingConfig, HeatConfig, read_heat
from triplepoint.simulate.power.gpu import clock_at_limit, rate_at
from triplepoint.simulate.power.parameters import Estimate, PowerConfig, read_power
from triplepoint.text import percent, signed_percent

_CAPPED = 0.97
"""Share of the power limit from which a kernel counts as throttled by it."""
_WORST = 0.2
"""Mean error on held-out kernels above which no file is written. The best published models have 7 %."""


@dataclass(frozen=True, eq=False)
class GpuFit:
    """Power and cooling fitted to a recording of a GPU type, with held-out errors.

    Attributes:
        power: Power model fitted to kernels.
        heat: Cooling fitted to the step of load.
        sustained: By power-capped kernel, its modelled over measured FLOP/s less 1, by a fit without its shape.
        energy_error: Modelled over measured energy of all kernels less 1, each kernel by a fit without it.
        cooling_rmse_k: Root mean square error of the temperature after the load, by a fit to the time before. Unit: K.
    """

    power: PowerFit
    heat: HeatFit
    sustained: dict[str, float]
    energy_error: float
    cooling_rmse_k: float


@dataclass(frozen=True, eq=False)
class Recorded:
    """A recording of one GPU.

    Attributes:
        table: Kernels run one after the other.
        log: A step from rest to load and back.
    """

    table: KernelTable
    log: StepLog


class PowerAndCooling:
    """The procedure: see `calibrate.protocol`."""

    def __init__(self, folder: Path, gpu: str, config: Path) -> None:
        """Read the configured power and cooling of a GPU type, where the fit starts.

        Args:
            folder: Recording that `triplepoint characterise --record` wrote.
            gpu: GPU type that was recorded.
            config: Folder of the configuration.

        Raises:
            UserError: If the GPU type has no power or cooling in the configuration.
        """
        self.folder, self.config = folder, config
        self.gpu: GpuConfig = Catalogue(config).gpu(gpu)
        for path in (config / "power" / f"{gpu}.yaml", config / "heat" / f"{gpu}.yaml"):
            if not path.is_file():
                raise UserError(
                    f"{path}: no such file; the fit starts from this file; copy that of the most similar GPU type"
                )
        self.power, self.heat = read_power(gpu, config), read_heat(gpu, config)

    def read(self) -> Recorded:
        """Return the recording. Raises `UserError` if it is incomplete or of another GPU type."""
        return Recorded(read_kernel_table(self.folder, self.gpu), read_step_log(self.folder, self.gpu))

    def fit(self, measured: Recorded) -> GpuFit:
        """Return power and cooling, with the errors on held-out kernels and on held-out cooling."""
        source, table, known = f"recording {self.folder}", measured.table, self.heat.cooling["air"]
        power = fit_power(table, self.power, source)
        weight = table.power_w / table.power_w.sum()
        return GpuFit(
            power=power,
            heat=fit_heat([measured.log], known, source),
            sustained=sustained_error(table, power),
            energy_error=float(weight @ power.held_out_error),
            cooling_rmse_k=_cooling_rmse_k(measured.log, known, source),
        )

    def report(self, fitted: GpuFit) -> list[str]:
        """Return the held-out errors, and every parameter before and after the fit.

        Raises:
            UserError: If the error on held-out kernels is too large.
        """
        mean = np.abs(fitted.power.held_out_error).mean()
        if mean > _WORST:
            raise UserError(
                f"{self.folder}: power of kernels left out of the fit is {percent(mean, 0)} off in the mean, more "
                f"than {percent(_WORST, 0)}; nothing is written; is this a recording of one {self.gpu.name}, with "
                "power in W?"
            )
        return [*_errors(fitted), *_changes(self.power, self.heat, fitted)]

    def files(self, fitted: GpuFit) -> dict[Path, str]:
        """Return the files of power and heat of the GPU type."""
        cooled = self.heat.model_copy(update={"cooling": {**self.heat.cooling, "air": fitted.heat.cooling}})
        return {
            self.config / part / f"{self.gpu.name}.yaml": f"# Calibrated with {self.folder}.\n{_text(content)}"
            for part, content in (("power", fitted.power.config), ("heat", cooled))
        }


def _cooling_rmse_k(log: StepLog, known: CoolingConfig, source: str) -> float:
    """Return the root mean square error of a log after its load, by a fit to the time before. Unit: K."""
    is_loaded = log.power_w > (log.power_w.min() + log.power_w.max()) / 2
    load_end = int(np.flatnonzero(is_loaded)[-1]) + 1
    blind = fit_heat([StepLog(log.t_s[:load_end], log.power_w[:load_end], log.temp_c[:load_end])], known, source)
    error_k = log.temp_c - simulate_log(delayed(log, blind.delay_s), blind.cooling, blind.inlet_c[0])
    return float(np.sqrt((error_k[load_end:] ** 2).mean()))


def sustained_error(table: KernelTable, fit: PowerFit) -> dict[str, float]:
    """Return modelled over measured speed less 1 of power-capped kernels, by kernel and operands.

    Each error comes from the model that was fitted without the kernel.
    """
    limit, top = fit.config.power_limit.value, fit.config.clocks.max_clock.value
    errors = {}
    for row in np.flatnonzero((table.power_w > _CAPPED * limit) & (table.clock_mhz < 0.99 * top)):
        kernel = table.pick(np.array([row]))
        measured = rate_at(kernel.clock_mhz / top, kernel.activity.clock_bound)
        # At the highest clock the kernel would draw more than the limit.
        uncapped = kernel.activity.at_rate(1.0 / measured)
        clock = clock_at_limit(fit.blind[table.kernel[row]], uncapped, limit, kernel.temp_c)
        operands = "random" if np.all(kernel.activity.randomness) else "zero"
        speed = rate_at(clock / top, kernel.activity.clock_bound) / measured
        errors[f"{table.kernel[row]} {operands}"] = float(speed[0] - 1.0)
    return errors


def _errors(fit: GpuFit) -> list[str]:
    """Return lines of text on the held-out errors."""
    errors = np.abs(fit.power.held_out_error)
    lines = [
        f"power of kernels left out of the fit: mean error {percent(errors.mean())}, P90 "
        f"{percent(np.quantile(errors, 0.9))}, {len(errors)} rows; energy of all of them "
        f"{signed_percent(fit.energy_error)}",
        f"heating and cooling, fitted: RMSE {fit.heat.rmse_k[0]:.2f} K, worst {fit.heat.worst_k:.1f} K; "
        f"cooling by a fit to heating alone: RMSE {fit.cooling_rmse_k:.2f} K",
    ]
    if fit.sustained:
        worst = max(fit.sustained.items(), key=lambda item: abs(item[1]))
        lines.insert(
            1, f"speed of kernels held by the power limit, left out: worst {signed_percent(worst[1])} ({worst[0]})"
        )
    return lines


def _changes(power: PowerConfig, heat: HeatConfig, fit: GpuFit) -> list[str]:
    """Return a line of text on every parameter before and after the fit, with its standard deviation."""
    before, after = _parameters(power, heat.cooling["air"]), _parameters(fit.power.config, fit.heat.cooling)
    return [
        f"{name}: {old.value:g} +- {old.sigma:g} -> {after[name].value:g} +- {after[name].sigma:g} {after[name].unit}"
        for name, old in before.items()
    ]


def _parameters(power: PowerConfig, cooling: CoolingConfig) -> dict[str, Estimate]:
    """Return the fitted parameters of power and cooling by name."""
    parameters = {name: getattr(power, name, None) or getattr(power.clocks, name) for name in FITTED}
    return parameters | {name: getattr(cooling, name) for name in sorted(COOLING)}


def _text(fitted: PowerConfig | HeatConfig) -> str:
    return to_yaml(fitted.model_dump(exclude_none=True), width=118)
