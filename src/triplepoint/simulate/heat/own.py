"""Power and heat of a GPU type calibrated with a recording of one, for `triplepoint calibrate --power`."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import yaml

from triplepoint.config.catalogue import Catalogue
from triplepoint.errors import UserError
from triplepoint.files import write_text
from triplepoint.simulate.estimates import Estimate
from triplepoint.simulate.heat.config import HeatConfig, read_heat
from triplepoint.simulate.heat.job import is_known
from triplepoint.simulate.heat.measured import Calibrated, calibrate
from triplepoint.simulate.power.config import PowerConfig, read_power
from triplepoint.simulate.power.fit import FITTED

_WORST = 0.2
"""Mean error of kernels left out from which nothing is written: it was 7 % in the best published models."""

_COOLING = ("die_resistance", "die_time", "sink_resistance", "sink_time")


def calibrate_power(folder: Path, gpu: str, config: Path) -> list[str]:
    """Fit power and cooling of a GPU type to a recording, write them, and return lines that tell what was found.

    Args:
        folder: Recording of kernels one by one and of a step from rest to load and back, as
            `triplepoint characterise --record` writes it.
        gpu: GPU type that was recorded; what is known of it is where the search begins.
        config: Folder of the configuration.

    Raises:
        UserError: If the recording is not whole or not of such a GPU, or nothing is known of the GPU type.
    """
    known_gpu = Catalogue(config).gpu(gpu)
    if not is_known(known_gpu, config):
        raise UserError(
            f"{config / 'power' / gpu}.yaml: no such file; a fit begins at what is known, so copy power/ and heat/ of "
            "the nearest GPU type there first"
        )
    power, heat = read_power(gpu, config), read_heat(gpu, config)
    found = calibrate(folder, known_gpu, power, heat)
    away = np.abs(found.power.held_out_error).mean()
    if away > _WORST:
        raise UserError(
            f"{folder}: power of kernels left out of the fit is {away:.0%} off in the mean, more than {_WORST:.0%}; "
            f"nothing is written; is this a recording of one {gpu}, with power in W?"
        )
    cooled = heat.model_copy(update={"cooling": {**heat.cooling, "air": found.heat.cooling}})
    for part, fitted in (("power", found.power.config), ("heat", cooled)):
        write_text(config / part / f"{gpu}.yaml", f"# Calibrated with {folder}.\n{_yaml(fitted)}")
    read_power.cache_clear()
    read_heat.cache_clear()
    return [*_errors(found), *_changes(power, heat, found)]


def _errors(found: Calibrated) -> list[str]:
    """Return what the fit says of what it has not seen."""
    away = np.abs(found.power.held_out_error)
    lines = [
        f"power of kernels left out of the fit: mean error {away.mean():.1%}, P90 {np.quantile(away, 0.9):.1%}, "
        f"{len(away)} rows; energy of all of them {found.energy_error:+.1%}",
        f"heating and cooling, fitted: RMSE {found.heat.rmse_k[0]:.2f} K, worst {found.heat.worst_k:.1f} K; "
        f"cooling by a fit to heating alone: RMSE {found.cooling_rmse_k:.2f} K",
    ]
    if found.sustained:
        worst = max(found.sustained.items(), key=lambda item: abs(item[1]))
        lines.insert(1, f"speed of kernels held by the power limit, left out: worst {worst[1]:+.1%} ({worst[0]})")
    return lines


def _changes(power: PowerConfig, heat: HeatConfig, found: Calibrated) -> list[str]:
    """Return every number before and after, with its standard deviation."""
    before = [(name, getattr(power, name, None) or getattr(power.clocks, name)) for name in FITTED]
    before += [(name, getattr(heat.cooling["air"], name)) for name in _COOLING]
    fitted = found.power.config
    after = [getattr(fitted, name, None) or getattr(fitted.clocks, name) for name in FITTED]
    after += [getattr(found.heat.cooling, name) for name in _COOLING]
    return list(_told(before, after))


def _told(before: Iterable[tuple[str, Estimate]], after: Iterable[Estimate]) -> Iterable[str]:
    for (name, old), new in zip(before, after, strict=True):
        yield f"{name}: {old.value:g} +- {old.sigma:g} -> {new.value:g} +- {new.sigma:g} {new.unit}"


def _yaml(fitted: PowerConfig | HeatConfig) -> str:
    return str(yaml.safe_dump(fitted.model_dump(exclude_none=True), sort_keys=False, width=118, allow_unicode=True))
