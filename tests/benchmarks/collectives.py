"""Errors of simulated collectives against measurements, in the fit and held out.

`python -m tests.benchmarks.collectives` (four minutes on one core). Each fit starts from the priors of the links,
not from values fitted to held-out rows. Two choices still come from all rows: which parameters are taken from another
link, and the rings of a DGX-1 with V100.

`python -m tests.benchmarks.collectives astra.csv` compares with ASTRA-sim instead: a table with the columns of
`tests/data/simulate/astra_collectives.csv` and `dims`, `splits`, `active_chunks`, `opt`, `status`.
"""

import csv
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from math import exp
from pathlib import Path

from triplepoint.calibrate.collectives import (
    Links,
    Row,
    every_other_size,
    fit_collectives,
    log_errors,
    read_fabrics,
    read_rows,
)
from triplepoint.simulate.collectives.links import load_link
from triplepoint.simulate.collectives.times import CollectiveModel
from triplepoint.simulate.fabric import Fabric, Group, Level, Network, network_levels, scale_up_levels
from triplepoint.units import MIB

CONFIG = Path("config")
FABRICS = read_fabrics(CONFIG)
ROWS = read_rows(FABRICS, CONFIG / "collectives" / "measured.csv")
LINKS: Links = {
    path.stem: load_link(path.stem, CONFIG) for path in sorted((CONFIG / "collectives" / "links").glob("*.yaml"))
}


def errors(rows: Sequence[Row], links: Links) -> list[float]:
    """Return the relative errors of the rows above 1 MiB."""
    return [abs(exp(error) - 1) for error in log_errors([row for row in rows if row.num_bytes > MIB], FABRICS, links)]


def held_out(is_out: Callable[[Row], bool]) -> list[float]:
    """Return the errors of rows that the fit does not include."""
    out = [row for row in ROWS if is_out(row)]
    outermost = {FABRICS[row.fabric].link for row in out}
    # Links inside the nodes are fitted first: to their own rows, and to no others.
    needed = outermost | {FABRICS[row.fabric].scale_up for row in ROWS if FABRICS[row.fabric].link in outermost}
    seen = [row for row in ROWS if FABRICS[row.fabric].link in needed and not is_out(row)]
    return errors(out, fit_collectives(seen, FABRICS, LINKS))


def tell(what: str, found: Sequence[float]) -> None:
    """Print the errors of some rows."""
    print(f"{what:40} {len(found):4} rows, median {statistics.median(found):6.1%}, mean {statistics.mean(found):6.1%}")


def main() -> None:
    """Print errors in the fit and held out."""
    tell("all rows, seen", errors(ROWS, LINKS))
    priors = {name: link.model_copy(update=link.prior) for name, link in LINKS.items()}
    tell("priors alone, nothing fitted", errors(ROWS, priors))
    halves = [every_other_size(ROWS, first) for first in (0, 1)]
    tell("every other size out", [error for half in halves for error in held_out(half.__contains__)])
    tell("above 128 MiB out", held_out(lambda row: row.num_bytes > 128 * MIB))
    tell("groups of 8, 64, 256, 1024 out", held_out(lambda row: row.num_gpus in (8, 64, 256, 1024)))
    tell("groups above 64 out", held_out(lambda row: row.num_gpus > 64))
    whole: list[float] = []
    for source in sorted({row.source for row in ROWS if row.num_bytes > MIB}):
        found = held_out(lambda row, source=source: row.source == source)  # type: ignore[misc]
        tell(f"source {source} out", found)
        whole += found
    tell("each source out in turn", whole)


def fabric_of_astra(dims: str) -> Fabric:
    """Return nodes of 8 GPUs at 450 GB/s and 50 GB/s between them, or one of the two, as ASTRA-sim was given them."""
    inside = scale_up_levels(LINKS["nvlink4"], 8, 450e9, False)
    if dims == "8":
        return Fabric(inside)
    if "x" not in dims:
        return Fabric((Level("rail", int(dims), 50e9, LINKS["infiniband"].latency_s, link="infiniband"),))
    return Fabric(inside + network_levels(Network(400e9), LINKS["infiniband"], 8, 1 << 20))


def compare_with_astra(path: Path) -> None:
    """Print our time over that of ASTRA-sim, from 64 MiB on, by backend, collective and algorithm."""
    ratios = defaultdict(list)
    usual = {"status": "ok", "opt": "localBWAware", "splits": "4", "active_chunks": "1"}
    with path.open() as file:
        for row in csv.DictReader(file):
            num_bytes = int(row["size_bytes"])
            if num_bytes < 64 * MIB or not usual.items() <= row.items():
                continue
            model = CollectiveModel(fabric_of_astra(row["dims"]), LINKS)
            ours = model.time_s(row["collective"], num_bytes, Group(int(row["npus"]), 1))  # type: ignore[arg-type]
            key = (row["backend"], row["algo"].split("x")[0], row["collective"])
            ratios[key].append(ours * 1e6 / float(row["time_us"]))
    for key, found in sorted(ratios.items()):
        low, middle, high = min(found), statistics.median(found), max(found)
        print(f"{' '.join(key):40} {len(found):3} rows, ours over theirs {middle:5.2f} ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    if sys.argv[1:]:
        compare_with_astra(Path(sys.argv[1]))
    else:
        main()
