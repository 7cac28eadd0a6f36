"""Calibrates power and heat with a recording: `python -m tests.benchmarks.power_heat_fit FOLDER --gpu h200 [--write]`.

FOLDER is what `tests/hardware/h200/measure.py` wrote. Prints errors on kernels left out of the fit; `--write` puts the
fitted numbers into `config/power/` and `config/heat/`, with their standard deviations.
"""

import argparse
from pathlib import Path

import numpy as np
import yaml

from tests.synthetic import CONFIG
from triplepoint.config.gpu import GpuConfig
from triplepoint.config.yaml_file import read
from triplepoint.simulate.heat.config import read_heat
from triplepoint.simulate.heat.measured import calibrate, read_kernel_table
from triplepoint.simulate.power.config import read_power
from triplepoint.simulate.power.fit import FITTED


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    gpu = read(GpuConfig, CONFIG / "gpus" / f"{given.gpu}.yaml")
    power, heat = read_power(given.gpu, CONFIG), read_heat(given.gpu, CONFIG)
    found, table = calibrate(given.folder, gpu, power, heat), read_kernel_table(given.folder, gpu)
    away = np.abs(found.power.held_out_error)
    print(f"{len(away)} rows, kernel left out: mean {away.mean():.1%}, P90 {np.quantile(away, 0.9):.1%} (target 5 %)")
    print(f"energy of the grid {found.energy_error:+.1%} (target 2 %)")
    for name, error in found.sustained.items():
        print(f"speed at the power limit, {name}: {error:+.1%} (target 2 %)")
    print(f"heating and cooling: RMSE {found.heat.rmse_k[0]:.2f} K, worst {found.heat.worst_k:.1f} (target 1.0 K)")
    for kernel in sorted(set(table.kernel), key=lambda name: -away[[of == name for of in table.kernel]].max())[:10]:
        print(
            f"  worst: {kernel}",
            *(f"{e:+.1%}" for e in found.power.held_out_error[[of == kernel for of in table.kernel]]),
        )
    for name in FITTED:
        known, new = (getattr(of, name, None) or getattr(of.clocks, name) for of in (power, found.power.config))
        print(f"{name}: {known.value:g} +- {known.sigma:g} -> {new.value:g} +- {new.sigma:g} {new.unit}")
    for name in ("die_resistance", "die_time", "sink_resistance", "sink_time"):
        known, new = getattr(heat.cooling["air"], name), getattr(found.heat.cooling, name)
        print(f"{name}: {known.value:g} +- {known.sigma:g} -> {new.value:g} +- {new.sigma:g} {new.unit}")
    if given.write:
        cooled = heat.model_copy(update={"cooling": {**heat.cooling, "air": found.heat.cooling}})
        for part, config in (("power", found.power.config), ("heat", cooled)):
            text = yaml.safe_dump(config.model_dump(exclude_none=True), sort_keys=False, width=118, allow_unicode=True)
            (CONFIG / part / f"{given.gpu}.yaml").write_text(f"# Calibrated with {given.folder}.\n{text}")


if __name__ == "__main__":
    main()
