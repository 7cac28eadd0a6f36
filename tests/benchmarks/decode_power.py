"""Errors of predicted GPU power in decoding: `python -m tests.benchmarks.decode_power`."""

from collections.abc import Sequence
from statistics import fmean

from tests.decode_power import Decoded, decoded


def show(name: str, rows: Sequence[Decoded]) -> None:
    """Print bias, mean absolute error and coverage of some rows."""
    print(
        f"{name:<42}{len(rows):4} rows  bias {fmean(row.error for row in rows):+6.1%}  mean "
        f"{fmean(abs(row.error) for row in rows):5.1%}  in the interval {fmean(row.is_covered for row in rows):4.0%}"
    )


def main() -> None:
    """Print errors by model, by batch size, and of all rows."""
    rows = list(decoded())
    for model in sorted({row.model for row in rows}):
        show(model, [row for row in rows if row.model == model])
    for low, high in ((1, 16), (17, 64), (65, 256), (257, 4096)):
        show(f"batches of {low} to {high}", [row for row in rows if low <= row.batch_size <= high])
    show("all", rows)


if __name__ == "__main__":
    main()
