"""Errors of kernel times on held-out shapes: `python -m tests.benchmarks.kernels`, half a minute.

Every table of `config/kernels/measured.csv` is fitted five times, each time without a fifth of its shape families (a
shape with all its transposes, whoever measured it), and asked for those.
"""

from pathlib import Path

from triplepoint.calibrate.kernels import Measurement, fit_kernels, read_measurements
from triplepoint.config.catalogue import Catalogue
from triplepoint.simulate.kernels.parameters import Fit, read_kernels

CONFIG = Path(__file__).parents[2] / "config"
TABLES = (
    ("h100", "cublas", "bf16"),
    ("h100", "deepgemm", "bf16"),
    ("h100", "cublas", "fp8"),
    ("h100", "cudnn", "bf16"),
    ("h100", "flash3", "bf16"),
    ("h100", "flash2", "bf16"),
    ("a100", "flash2", "bf16"),
)
LARGE_FLOPS = 5e10


def main() -> None:
    """Print one line per table, of all kernels and of the large ones alone."""
    rows = read_measurements(CONFIG / "kernels" / "measured.csv")
    print(f"{'GPU':6}{'library':10}{'precision':11}{'rows':>6}{'median':>9}{'P90':>9}{'sigma':>9}")
    for gpu, library, precision in TABLES:
        wanted = (gpu, library, precision)
        table = [row for row in rows if (row.gpu, row.library, row.kernel.precision) == wanted]
        for note, chosen in (("", table), (" large", [row for row in table if row.kernel.flops >= LARGE_FLOPS])):
            fit = held_out(chosen, gpu, library, precision)
            errors = f"{fit.held_out_median or 0:9.1%}{fit.held_out_p90 or 0:9.1%}{fit.sigma:9.1%}"
            print(f"{gpu:6}{library:10}{precision + note:11}{fit.rows:6}{errors}")


def held_out(rows: list[Measurement], gpu: str, library: str, precision: str) -> Fit:
    """Return the errors of a fit to one table on held-out rows."""
    refitted = fit_kernels(
        rows, Catalogue(CONFIG).gpu(gpu), read_kernels(Catalogue(CONFIG).gpu(gpu), CONFIG), "measured.csv"
    )
    is_attention = rows[0].kernel.cls == "attention"
    return refitted.attention[library].fit if is_attention else refitted.gemm[precision].fit


if __name__ == "__main__":
    main()
