"""Speed of `triplepoint import`: an hour of eight GPUs in one nvidia-smi CSV, against the floor of splitting its cells.

Run `python -m tests.benchmarks.import_speed [SECONDS]`; it prints time and MB/s of both.
"""

import csv
import gc
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from triplepoint.importers.folder import ImportOptions, list_folder, read_telemetry

HEADER = (
    "timestamp, index, power.draw [W], power.draw.instant [W], temperature.gpu, clocks.current.sm [MHz], "
    "utilization.gpu [%], memory.used [MiB]"
)


def write(path: Path, seconds: int) -> None:
    """Write a log of ten samples a second of eight GPUs."""
    lines = [
        f"{datetime.fromtimestamp(1.8e9 + tick / 10, UTC):%Y/%m/%d %H:%M:%S}.{tick % 10 * 100 + gpu:03}, {gpu}, "
        f"{600 + tick % 50}.25 W, {610 + tick % 60}.50 W, 61, 1755 MHz, 100 %, 71234 MiB"
        for tick in range(seconds * 10)
        for gpu in range(8)
    ]
    path.write_text("\n".join([HEADER, *lines]) + "\n")


def main(seconds: int) -> None:
    """Print how long both take."""
    gc.disable()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "smi.csv", seconds)
        size_mb = (folder / "smi.csv").stat().st_size / 1e6
        began = time.perf_counter()
        with (folder / "smi.csv").open() as file:
            columns = list(zip(*csv.reader(file), strict=True))
        split_s = time.perf_counter() - began
        began = time.perf_counter()
        read = read_telemetry(list_folder(folder), folder, ImportOptions(timezone="UTC"), None, lambda line: None)
        import_s = time.perf_counter() - began
        num = sum(len(part.t_ns) for part in read.hosts["node0"].parts)
    print(f"{size_mb:.1f} MB, {num} samples of {len(columns)} columns")
    print(f"split cells: {split_s:.2f} s, {size_mb / split_s:.1f} MB/s")
    print(f"import: {import_s:.2f} s, {size_mb / import_s:.1f} MB/s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3600)
