"""Simulated clusters with one known fault each, as runs with all tables that `triplepoint why` reads.

The simulator models heat, power and clocks. For bad contact, blocked air, a warm inlet, a lower power limit or a power
brake, its closed loop gives the sensor readings and the longer kernel times. The simulator does not model a slow
network adapter, a slow host, late data, or a GPU that is slow at its full clock. These faults are applied to the
operations of a sound run, and the replay of `why` moves all operations that wait for them. `why` is not told the cause.
"""

import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import yaml

from tests.points import simulated_plan
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.plan import PlannedRun
from triplepoint.config.point import Layout
from triplepoint.manifest import read_manifest
from triplepoint.simulate.artefacts import simulate_run
from triplepoint.simulate.heat import warm
from triplepoint.simulate.heat.machine import Machine
from triplepoint.telemetry.align import align_run
from triplepoint.trace.run_traces import trace_run
from triplepoint.trace.taxonomy import load_scheme
from triplepoint.why.answer import Answer, answer_of, why_run
from triplepoint.why.explain import CAUSES
from triplepoint.why.operations import Operations
from triplepoint.why.replay import find_gaps, find_order, replay
from triplepoint.why.run_operations import operations_of_traces
from triplepoint.why.sensed import sense

CONFIG = Path("config")
PP, DP, PER_NODE = 2, 8, 2
"""Two stages of four nodes with two GPUs each, so that every transfer of the pipeline leaves its node."""
CLUSTER = "h200x32"


@dataclass(frozen=True, eq=False)
class Fault:
    """Fault of a cluster.

    Attributes:
        cause: Cause that `why` should report; None for a sound cluster.
        gpu: Node, and GPU in the node, with the fault.
        conditions: Changed conditions of the cluster, as in its file.
        limit_w: Power limit of that GPU only, None if unchanged. Unit: W.
        inlet_c: Inlet temperature of its node only, None if unchanged. Unit: degC.
        late: Change of its operations, None if there is none: a key of `LATE`, and the size of the change.
        seed: Seed of manufacturing spread and noise.
    """

    cause: str | None
    gpu: tuple[int, int] = (0, 0)
    conditions: Mapping[str, Any] | None = None
    limit_w: float | None = None
    inlet_c: float | None = None
    late: tuple[str, float] | None = None
    seed: int = 0

    @property
    def rank(self) -> int:
        """Rank of the GPU."""
        return self.gpu[0] * PER_NODE + self.gpu[1]


def write_cluster(folder: Path, fault: Fault, run: PlannedRun | None = None) -> Path:
    """Simulate a run on a cluster with a fault, and write its tables; return the folder of the run.

    Args:
        folder: Folder to write into.
        fault: The fault.
        run: The run. If None, two stages of eight replicas on nodes of two GPUs.
    """
    config = shutil.copytree(CONFIG, folder / "config")
    path = config / "clusters" / f"{CLUSTER}.yaml"
    cluster = yaml.safe_load(path.read_text())
    conditions = cluster["conditions"] | dict(fault.conditions or {})
    if fault.limit_w is not None or fault.inlet_c is not None:
        conditions["bad_contact"] = {f"node{fault.gpu[0]}.gpu{fault.gpu[1]}": 1.0}
    run = run or planned_run(fault.seed)
    per_node = run.point.cluster.gpus_per_node
    size = {"num_nodes": run.point.num_gpus // per_node, "gpus_per_node": per_node}
    path.write_text(yaml.safe_dump(cluster | size | {"conditions": conditions}))
    out = folder / "results" / "runs" / run.run
    out.mkdir(parents=True)
    (out / "point.json").write_text(run.model_dump_json())
    original_machine_of = warm.machine_of

    def machine_of(*arguments: Any) -> Machine:
        machine = original_machine_of(*arguments[:5], fault.seed)
        if not arguments[0].bad_contact:  # the sound cluster, with whose pace all others are compared
            return machine
        limits_w, inlet_c = machine.limits_w.copy(), machine.inlet_c.copy()
        if fault.limit_w is not None:
            limits_w[fault.gpu] = fault.limit_w
        if fault.inlet_c is not None:
            inlet_c[fault.gpu[0]] = fault.inlet_c
        return replace(machine, power_limit_w=limits_w, inlet_c=inlet_c)

    with patch.object(warm, "machine_of", machine_of):
        manifest = simulate_run.simulate_run(run, out / "raw", config)
    assert manifest.status == "ok", manifest.evidence
    align_run(out / "raw", out / "telemetry.parquet")
    if run.point.steps.profiled:
        trace_run(out, load_scheme(), lambda line: None, 1)
    return out


def planned_run(seed: int, **changed: Any) -> PlannedRun:
    """Return the run of two stages of eight replicas.

    Args:
        seed: Seed of the point.
        changed: Fields of the point to change.
    """
    entries = simulated_plan(CLUSTER).valid
    run = next(entry.planned for entry in entries if "llama3-30b_h200x32_tp4-pp4-dp2" in entry.run)
    steps = run.point.steps.model_copy(update={"warmup": 2, "measured": 6, "profiled": 1})
    changes = {
        "model": Catalogue(CONFIG).model("llama2-7b"),
        "layout": Layout(pp=PP, dp=DP, schedule="1f1b"),
        "num_gpus": PP * DP,
        "global_batch_size": 8 * DP,
        "sequence_length": 4096,
        "recompute": "none",
        "steps": steps,
        "cluster": run.point.cluster.model_copy(update={"gpus_per_node": PER_NODE}),
        "trace_ranks": "all",
        "seed": seed,
    }
    point = run.point.model_copy(update=changes | changed)
    return run.model_copy(update={"run": f"made-up-{seed}", "point": point, "digest": point.digest()})


LATE: Mapping[str, str] = {
    "network": "factor on the duration of its transfers",
    "launch": "delay before each of its operations, in s",
    "data": "delay of the start of its step, in s",
    "computation": "factor on the duration of its passes, at the clock of its peers",
}
"""Changes of operations by name, and the meaning of their size."""
NOISE = 0.01
"""Relative standard deviation of the noise of every duration."""


def with_fault(operations: Operations, fault: Fault) -> Operations:
    """Return the operations of a sound run as they would be with a late worker, with noise on every duration."""
    random = np.random.default_rng(fault.seed)
    order = find_order(operations)
    gap_s, is_first = find_gaps(operations, order)
    work_s = operations.work_s * (1 + NOISE * random.standard_normal(operations.work_s.shape))
    is_of_rank = operations.of_worker("rank") == fault.rank
    name, size = fault.late or ("launch", 0.0)
    if name == "network":
        work_s[np.isin(operations.transfer, operations.transfer[is_of_rank & operations.is_comm])] *= size
    elif name == "computation":
        work_s[is_of_rank & ~operations.is_comm] *= size
    else:
        gap_s = gap_s + np.where(is_of_rank & (is_first == (name == "data")), size, 0.0)[:, None]
    times = replay(operations, order, work_s, gap_s)
    is_shared = np.bincount(operations.transfer)[operations.transfer] > 1
    start_s = times.start_s + np.where(is_shared[:, None], gap_s, 0.0)
    return replace(operations, start_s=start_s, duration_s=times.end_s - start_s)


def _contact(node: int, gpu: int, factor: float, seed: int = 0) -> Fault:
    return Fault("contact", (node, gpu), {"bad_contact": {f"node{node}.gpu{gpu}": factor}}, seed=seed)


CLUSTERS: tuple[Fault, ...] = (
    *(Fault(None, seed=seed) for seed in range(3)),
    _contact(1, 1, 7),
    _contact(4, 0, 3),
    _contact(6, 1, 5, seed=4),
    _contact(2, 0, 7, seed=5),
    Fault("contact", (3, 0), {"blocked_airflow": {"node3.gpu0": 0.4}}),
    Fault("heat", (2, 0), inlet_c=58.0),
    Fault("heat", (6, 0), inlet_c=55.0, seed=6),
    Fault("power limit", (5, 1), limit_w=450.0),
    Fault("power limit", (0, 0), limit_w=550.0, seed=7),
    Fault("power limit", (3, 1), limit_w=350.0),
)
"""Clusters with simulated heat, power and clocks."""

LATE_CLUSTERS: tuple[Fault, ...] = (
    *(Fault(None, seed=seed) for seed in range(10, 14)),
    Fault("network", (1, 0), late=("network", 2.0), seed=14),
    Fault("network", (5, 1), late=("network", 1.3), seed=15),
    Fault("network", (6, 1), late=("network", 4.0), seed=16),
    Fault("launch", (0, 1), late=("launch", 0.003), seed=17),
    Fault("launch", (4, 1), late=("launch", 0.02), seed=18),
    Fault("launch", (2, 0), late=("launch", 0.005), seed=19),
    Fault("data", (2, 1), late=("data", 0.3), seed=20),
    Fault("data", (0, 0), late=("data", 0.05), seed=21),
    Fault("data", (3, 0), late=("data", 0.1), seed=22),
    Fault("computation", (3, 1), late=("computation", 1.1), seed=23),
    Fault("computation", (4, 0), late=("computation", 1.5), seed=24),
)
"""Clusters made from the first sound cluster: its operations with a fault and noise, its telemetry unchanged."""


def replica_and_stage(rank: int) -> tuple[int, int]:
    """Return replica and stage of a rank."""
    return rank % DP, rank // DP


def why_late(run: Path, fault: Fault) -> Answer:
    """Return the answer of `why` for a sound run with a late worker."""
    operations = with_fault(operations_of_traces(run, replica_and_stage, PER_NODE), fault)
    manifest = read_manifest(run / "raw" / "manifest.json")
    sensed = {gpu.rank: gpu for gpu in sense(run, manifest, lambda rank: replica_and_stage(rank)[1])}
    return answer_of("late", "traces", operations, sensed, PP * DP, lambda place: (place[1] * DP + place[0],), ())


def confusion_table(causes: Sequence[tuple[str | None, str | None]]) -> list[str]:
    """Return a Markdown table with the number of clusters by true cause and reported cause.

    Args:
        causes: True cause and first reported cause of each cluster; None for no cause.
    """
    shown = [cause for cause in (*CAUSES, None) if any(cause in pair for pair in causes)]
    names = [cause or "none" for cause in shown]
    lines = [f"| true cause | {' | '.join(names)} |", "|---" * (len(shown) + 1) + "|"]
    counts = Counter(causes)
    for cause, name in zip(shown, names, strict=True):
        lines.append(f"| {name} | {' | '.join(str(counts[cause, reported] or '') for reported in shown)} |")
    return lines


def draw_faults(number: int, seed: int) -> list[Fault]:
    """Return faults of random kind, place and size. The smallest are barely detectable, the largest are obvious."""
    random = np.random.default_rng(seed)
    faults: list[Fault] = []
    for index in range(number):
        node, gpu = int(random.integers(PP * DP // PER_NODE)), int(random.integers(PER_NODE))
        part, place = f"node{node}.gpu{gpu}", {"gpu": (node, gpu), "seed": 100 + index}
        kinds: list[Callable[[], Fault]] = [
            lambda place=place: Fault(None, **place),
            lambda place=place, part=part: Fault(
                "contact", conditions={"bad_contact": {part: random.uniform(3, 8)}}, **place
            ),
            lambda place=place, part=part: Fault(
                "contact", conditions={"blocked_airflow": {part: random.uniform(0.3, 0.5)}}, **place
            ),
            lambda place=place: Fault("heat", inlet_c=random.uniform(50, 60), **place),
            lambda place=place: Fault("power limit", limit_w=random.uniform(300, 600), **place),
            lambda place=place: Fault("network", late=("network", random.uniform(1.2, 4)), **place),
            lambda place=place: Fault("launch", late=("launch", 10 ** random.uniform(-2.5, -1.5)), **place),
            lambda place=place: Fault("data", late=("data", random.uniform(0.03, 0.5)), **place),
            lambda place=place: Fault("computation", late=("computation", random.uniform(1.03, 1.5)), **place),
        ]
        faults.append(kinds[index % len(kinds)]())
    return faults


def main() -> None:
    """Print the confusion table of random clusters: `python -m tests.made_up_clusters NUMBER SEED`."""
    number, seed = map(int, sys.argv[1:3])
    causes: list[tuple[str | None, str | None]] = []
    with tempfile.TemporaryDirectory() as folder:
        sound = write_cluster(Path(folder) / "sound", CLUSTERS[0])
        for index, fault in enumerate(draw_faults(number, seed)):
            if fault.late is None:
                answer = why_run(write_cluster(Path(folder) / str(index), fault))
            else:
                answer = why_late(sound, fault)
            first = answer.findings[0] if answer.findings else None
            reported = first.cause if first else None
            causes.append((fault.cause, reported))
            if fault.cause != reported or (first and first.rank // PER_NODE != fault.gpu[0]):
                sizes = [size for size in (fault.conditions, fault.limit_w, fault.inlet_c, fault.late) if size]
                print(f"{fault.cause} of rank {fault.rank}, {sizes}: said {first}")
    print("\n".join(confusion_table(causes)))


if __name__ == "__main__":
    main()
