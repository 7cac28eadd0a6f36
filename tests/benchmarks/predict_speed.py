"""CPU time of predictions: published rows with and without power, and 2,000 configurations of 512 GPUs in one call.

Run from the repository: python -m tests.benchmarks.predict_speed
"""

import resource
import tempfile
import time
from collections.abc import Callable
from itertools import islice, product
from pathlib import Path

import yaml

import triplepoint
from triplepoint.published.table import predict_table
from triplepoint.simulate.predict.prediction import read_calibrations

CONFIG = Path("config")
DATA = Path(__file__).parents[1] / "data" / "throughput"
TABLES = ("training_throughput", "vtrain_single_node")
NUM_CONFIGURATIONS = 2000


def configurations(cluster: str) -> list[dict[str, object]]:
    """Return distinct layouts, micro-batches and batches of two models on a cluster."""
    layouts = ((8, 4), (8, 8), (4, 8), (4, 16), (8, 16), (2, 16), (8, 2), (4, 4))
    batches = [512 * count for count in range(1, 33)]
    axes = product(("llama3-70b", "gpt3-175b"), layouts, (1, 2), ("none", "full"), batches)
    return [
        {
            "model": model, "cluster": cluster, "tp": tp, "pp": pp, "micro_batch_size": micro_batch,
            "recompute": recompute, "global_batch_size": batch, "sequence_parallel": True,
        }
        for model, (tp, pp), micro_batch, recompute, batch in islice(axes, NUM_CONFIGURATIONS)
    ]  # fmt: skip


def larger_cluster(folder: Path, num_nodes: int) -> Path:
    """Return a configuration with a cluster `many`, an h200x32 with more nodes."""
    config = folder / "config"
    config.mkdir()
    for part in CONFIG.resolve().iterdir():
        if part.name != "clusters":
            (config / part.name).symlink_to(part)
    (config / "clusters").mkdir()
    content = yaml.safe_load((CONFIG / "clusters" / "h200x32.yaml").read_text())
    content |= {"name": "many", "num_nodes": num_nodes}
    (config / "clusters" / "many.yaml").write_text(yaml.safe_dump(content))
    return config


def took(what: str, action: Callable[[], int]) -> None:
    """Print the CPU time of a call, of all its processes."""
    wall, before = time.monotonic(), _cpu_s()
    number = action()
    cpu = _cpu_s() - before
    print(f"{what}: {number} rows, {cpu:.1f} CPU s, {1e3 * cpu / number:.1f} ms a row, {time.monotonic() - wall:.1f} s")


def _cpu_s() -> float:
    """Return the CPU time of this process and its children. Unit: s."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def main() -> None:
    """Print all measurements."""
    read_calibrations(CONFIG)
    for with_power in (False, True):

        def published(with_power: bool = with_power) -> int:
            tables = (DATA / f"{name}.csv" for name in TABLES)
            return sum(len(predict_table(table, CONFIG, lambda _: None, with_power)) for table in tables)

        took(f"published rows, {'with' if with_power else 'without'} power", published)
    with tempfile.TemporaryDirectory() as scratch:
        config = larger_cluster(Path(scratch), 64)
        points = configurations("many")
        took("512 GPUs, one call, without power", lambda: len(triplepoint.predict(points, config, with_power=False)))


if __name__ == "__main__":
    main()
