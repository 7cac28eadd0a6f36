"""Simulated clusters with one known fault each, as runs with all tables that `triplepoint why` reads.

Heat, power and clocks are the simulator's: with bad contact, blocked air, a warm inlet, a lower power limit or a pulled
brake its own closed loop says what sensors show and how much longer kernels last. Faults the simulator does not know
(a slow adapter, a slow host, late data, a GPU that is slow at its full clock) are put into the operations of a sound
run and replayed: what waits for them is moved by the same replay that `why` uses, their cause is not told.
"""

import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import yaml

from triplepoint.config.catalogue import Catalogue
from triplepoint.config.plan import Plan, PlannedRun
from triplepoint.config.point import Layout
from triplepoint.manifest import read_manifest
from triplepoint.plan import select
from triplepoint.simulate.artefacts import simulate_run
from triplepoint.simulate.heat import warm
from triplepoint.simulate.heat.machine import Machine
from triplepoint.telemetry.align import align_run
from triplepoint.trace.join import trace_run
from triplepoint.trace.taxonomy import load_scheme
from triplepoint.why.answer import Answer, answer_of, why_run
from triplepoint.why.explain import CAUSES
from triplepoint.why.operations import Operations
from triplepoint.why.replay import find_gaps, find_order, replay
from triplepoint.why.run_operations import operations_of_traces
from triplepoint.why.sensed import sense

CONFIG = Path("config")
PP, DP, PER_NODE = 2, 8, 2
"""Eight nodes of two GPUs: four nodes are a stage, and every transfer of the pipeline leaves its node."""
CLUSTER = "h200x32"


@dataclass(frozen=True, eq=False)
class Fault:
    """What is wrong with a cluster.

    Attributes:
        cause: What `why` should say; None of a sound cluster.
        gpu: Node and GPU.
        conditions: Of the cluster, as its file has them.
        limit_w: Power limit of that GPU alone. Unit: W.
        inlet_c: Inlet of its node alone. Unit: degC.
        late: Change of its operations; a key of `LATE`, and how much.
        seed: Of the draw of parts and of noise.
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
    """Simulate a run on a cluster with a fault, and return the run's folder with its tables.

    Args:
        folder: Where to.
        fault: The fault.
        run: What runs; two stages of eight replicas on nodes of two GPUs if not given.
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
    usual = warm.machine_of

    def machine_of(*arguments: Any) -> Machine:
        made = usual(*arguments[:5], fault.seed)
        if not arguments[0].bad_contact:  # the sound cluster, whose pace all others keep
            return made
        limits, inlet_c = made.limits_w.copy(), made.inlet_c.copy()
        if fault.limit_w is not None:
            limits[fault.gpu] = fault.limit_w
        if fault.inlet_c is not None:
            inlet_c[fault.gpu[0]] = fault.inlet_c
        return replace(made, power_limit_w=limits, inlet_c=inlet_c)

    with patch.object(warm, "machine_of", machine_of):
        manifest = simulate_run.simulate_run(run, out / "raw", config)
    assert manifest.status == "ok", manifest.evidence
    align_run(out / "raw", out / "telemetry.parquet")
    if run.point.steps.profiled:
        trace_run(out, load_scheme(), lambda line: None, 1)
    return out


@cache
def _selected() -> Plan:
    return select(CONFIG, None, ["cpu-local"], [CLUSTER])


def planned_run(seed: int, **changed: Any) -> PlannedRun:
    """Return the run of two stages of eight replicas; settings of its point may be changed."""
    found = _selected()
    run = next(entry.planned for entry in found.valid if "llama3-30b_h200x32_tp4-pp4-dp2" in entry.run)
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
    "network": "its transfers last so many times as long",
    "launch": "so many seconds pass before each of its operations",
    "data": "its step begins so many seconds later",
    "computation": "its passes last so many times as long, at the clock of its peers",
}
"""Changes of operations."""
NOISE = 0.01
"""Standard deviation of every duration, relative."""


def with_fault(operations: Operations, fault: Fault) -> Operations:
    """Return operations of a sound run as they would be with a late worker, every duration with some noise."""
    random = np.random.default_rng(fault.seed)
    order = find_order(operations)
    gap_s, is_first = find_gaps(operations, order)
    work_s = operations.work_s * (1 + NOISE * random.standard_normal(operations.work_s.shape))
    is_own = operations.of_worker("rank") == fault.rank
    name, size = fault.late or ("launch", 0.0)
    if name == "network":
        work_s[np.isin(operations.group, operations.group[is_own & operations.is_comm])] *= size
    elif name == "computation":
        work_s[is_own & ~operations.is_comm] *= size
    else:
        gap_s = gap_s + np.where(is_own & (is_first == (name == "data")), size, 0.0)[:, None]
    times = replay(operations, order, work_s, gap_s)
    is_shared = np.bincount(operations.group)[operations.group] > 1
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
"""Clusters whose heat, power and clocks are simulated."""

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
"""Clusters made of the first sound one: its operations with a fault and noise, its telemetry as it is."""


def replica_and_stage(rank: int) -> tuple[int, int]:
    """Return replica and stage of a rank."""
    return rank % DP, rank // DP


def why_late(run: Path, fault: Fault) -> Answer:
    """Return why a sound run would be slow with a late worker."""
    operations = with_fault(operations_of_traces(run, replica_and_stage, PER_NODE), fault)
    manifest = read_manifest(run / "raw" / "manifest.json")
    sensed = {one.rank: one for one in sense(run, manifest, lambda rank: replica_and_stage(rank)[1])}
    return answer_of("late", "traces", operations, sensed, PP * DP, lambda place: (place[1] * DP + place[0],), ())


def confusion_table(found: Sequence[tuple[str | None, str | None]]) -> list[str]:
    """Return a Markdown table of clusters by their true cause and the cause that comes first, '' for none."""
    causes = [*CAUSES, None]
    kept = [cause for cause in causes if any(cause in pair for pair in found)]
    names = [cause or "none" for cause in kept]
    lines = [f"| true cause | {' | '.join(names)} |", "|---" * (len(kept) + 1) + "|"]
    counts = Counter(found)
    for cause, name in zip(kept, names, strict=True):
        lines.append(f"| {name} | {' | '.join(str(counts[cause, said] or '') for said in kept)} |")
    return lines


def draw_faults(number: int, seed: int) -> list[Fault]:
    """Return faults of drawn kind, place and size: from hardly to be seen to plain."""
    random = np.random.default_rng(seed)
    made: list[Fault] = []
    for index in range(number):
        node, gpu = int(random.integers(PP * DP // PER_NODE)), int(random.integers(PER_NODE))
        part, own = f"node{node}.gpu{gpu}", {"gpu": (node, gpu), "seed": 100 + index}
        kinds: list[Callable[[], Fault]] = [
            lambda own=own: Fault(None, **own),
            lambda own=own, part=part: Fault(
                "contact", conditions={"bad_contact": {part: random.uniform(3, 8)}}, **own
            ),
            lambda own=own, part=part: Fault(
                "contact", conditions={"blocked_airflow": {part: random.uniform(0.3, 0.5)}}, **own
            ),
            lambda own=own: Fault("heat", inlet_c=random.uniform(50, 60), **own),
            lambda own=own: Fault("power limit", limit_w=random.uniform(300, 600), **own),
            lambda own=own: Fault("network", late=("network", random.uniform(1.2, 4)), **own),
            lambda own=own: Fault("launch", late=("launch", 10 ** random.uniform(-2.5, -1.5)), **own),
            lambda own=own: Fault("data", late=("data", random.uniform(0.03, 0.5)), **own),
            lambda own=own: Fault("computation", late=("computation", random.uniform(1.03, 1.5)), **own),
        ]
        made.append(kinds[index % len(kinds)]())
    return made


def main() -> None:
    """Print the confusion table of drawn clusters: `python -m tests.made_up_clusters NUMBER SEED`."""
    number, seed = map(int, sys.argv[1:3])
    found: list[tuple[str | None, str | None]] = []
    with tempfile.TemporaryDirectory() as folder:
        sound = write_cluster(Path(folder) / "sound", CLUSTERS[0])
        for index, fault in enumerate(draw_faults(number, seed)):
            if fault.late is None:
                answer = why_run(write_cluster(Path(folder) / str(index), fault))
            else:
                answer = why_late(sound, fault)
            first = answer.findings[0] if answer.findings else None
            found.append((fault.cause, first.cause if first else None))
            if found[-1][0] != found[-1][1] or (first and first.rank // PER_NODE != fault.gpu[0]):
                sizes = [fault.conditions, fault.limit_w, fault.inlet_c, fault.late]
                print(f"{fault.cause} of rank {fault.rank}, {[one for one in sizes if one]}: said {first}")
    print("\n".join(confusion_table(found)))


if __name__ == "__main__":
    main()
