"""Kernels of a GPU type fitted to what `triplepoint doctor --measure` measured, beside the rows that were known."""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import yaml

from triplepoint.config.catalogue import Catalogue
from triplepoint.errors import UserError
from triplepoint.files import write_text
from triplepoint.simulate.kernels.config import KernelConfig, read_kernels
from triplepoint.simulate.kernels.fit import Measurement, fit_kernels, read_measurements
from triplepoint.units import US_PER_S


def calibrate_kernels(table: Path, config: Path) -> list[str]:
    """Fit the kernels of a GPU type to a table, write them, and return lines that tell what was done.

    GPUs of one type are one row: the median of those measured. Rows of the same GPU type and library that are in
    `config/kernels/measured.csv` are kept beside them.

    Args:
        table: `kernels.csv` of `triplepoint doctor`.
        config: Folder of the configuration.

    Raises:
        UserError: If the table is missing or is not of one GPU type of the configuration.
    """
    if not table.is_file():
        raise UserError(f"{table}: no such file; write one with 'triplepoint doctor --cluster NAME --measure'")
    found = _medians(read_measurements(table))
    names = sorted({row.gpu for row in found})
    if len(names) != 1 or names == ["cpu"]:
        raise UserError(f"{table}: measured on {', '.join(names) or 'nothing'}; expected one GPU type of config/gpus")
    gpu = Catalogue(config).gpu(names[0], table)
    libraries = {row.library for row in found}
    before = [
        row
        for row in read_measurements(config / "kernels" / "measured.csv")
        if row.gpu == gpu.name and row.library in libraries and row.kernel.precision == found[0].kernel.precision
    ]
    known = read_kernels(gpu.name, config)
    gap_s = known.launch_gap.value / US_PER_S
    # The doctor's runs follow one another: what it times is a run with the gap to the next.
    found = [replace(row, time_s=max(row.time_s - gap_s, gap_s)) for row in found]
    source = f"{len(found)} rows of {found[0].source}" + (f", {len(before)} of measured.csv" if before else "")
    fitted = fit_kernels([*before, *found], gpu, known, source)
    path = config / "kernels" / f"{gpu.name}.yaml"
    write_text(path, _yaml(fitted))
    return [f"{path}: {_told(fitted, precision)}" for precision in sorted({row.kernel.precision for row in found})]


def _medians(rows: Sequence[Measurement]) -> list[Measurement]:
    groups: dict[object, list[Measurement]] = defaultdict(list)
    for row in rows:
        groups[row.gpu, row.library, row.kernel].append(row)
    return [replace(group[0], time_s=statistics.median(row.time_s for row in group)) for group in groups.values()]


def _told(fitted: KernelConfig, precision: str) -> str:
    fit = fitted.gemm[precision].fit
    return f"{precision} products fitted to {fit.source}; median error of shapes held out {fit.held_out_median:.1%}"


def _yaml(fitted: KernelConfig) -> str:
    content = fitted.model_dump(mode="json", exclude_defaults=True)
    return yaml.safe_dump(content, sort_keys=False, width=120, allow_unicode=True)
