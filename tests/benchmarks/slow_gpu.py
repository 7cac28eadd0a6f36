"""What `why` says that one slow GPU of a tensor parallel group costs, against the same job without it.

Run from the repository: python -m tests.benchmarks.slow_gpu
A GPU computes at 0.9 or 0.8 of the speed of its peers, and no sensor shows it. Llama 3 8B, 64 sequences of 8192 tokens
a step, on nodes of 8 H200; all ranks are traced.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.unit.why.test_pipeline_of_nodes import planned, run_with
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.plan import PlannedRun
from triplepoint.config.point import Layout
from triplepoint.manifest import read_manifest
from triplepoint.text import percent
from triplepoint.why.answer import Answer, why_run

PER_NODE = 8
SPEED = 0.9
CASES: tuple[tuple[str, dict[str, Any], str, float], ...] = (
    ("TP8 PP2", {"tp": 8, "pp": 2}, "node1.gpu3", SPEED),
    ("TP4 PP2", {"tp": 4, "pp": 2}, "node0.gpu7", SPEED),
    ("TP4 PP2, first stage", {"tp": 4, "pp": 2}, "node0.gpu2", SPEED),
    ("TP4 PP2 DP2", {"tp": 4, "pp": 2, "dp": 2}, "node1.gpu7", SPEED),
    ("TP4 PP4", {"tp": 4, "pp": 4}, "node1.gpu2", SPEED),
    ("TP2 PP2", {"tp": 2, "pp": 2}, "node0.gpu3", SPEED),
    ("TP2 PP2, first stage", {"tp": 2, "pp": 2}, "node0.gpu0", SPEED),
    ("TP2 PP4", {"tp": 2, "pp": 4}, "node0.gpu5", SPEED),
    ("TP4 DP2", {"tp": 4, "dp": 2, "schedule": None}, "node0.gpu5", SPEED),
    ("TP4 PP2 VP2", {"tp": 4, "pp": 2, "vp": 2, "schedule": "interleaved_1f1b"}, "node0.gpu5", SPEED),
    ("TP4 PP4, speed 0.8", {"tp": 4, "pp": 4}, "node1.gpu6", 0.8),
)
"""Name, layout (1F1B if it names no schedule), slow GPU and its speed."""


class Case(NamedTuple):
    """A job with a slow GPU: the step with and without it in s, and what `why` says."""

    step_s: float
    sound_s: float
    answer: Answer


def cases() -> Iterator[tuple[str, Case]]:
    """Yield name and result of each layout with micro-batches of one and two sequences."""
    for name, degrees, slow, speed in CASES:
        for size in (1, 2):
            with tempfile.TemporaryDirectory() as folder:
                yield f"{name}, micro-batch {size}", run_case(Path(folder), degrees, {slow: speed}, size)


def run_case(folder: Path, degrees: dict[str, Any], slow_gpus: dict[str, float], micro_batch_size: int) -> Case:
    """Simulate a job with and without the slow GPU."""
    layout = Layout(**({"schedule": "1f1b"} | degrees))
    num_gpus = layout.tp * layout.pp * layout.dp
    nodes: dict[str, Any] = {"num_nodes": -(-num_gpus // PER_NODE), "gpus_per_node": PER_NODE}
    plan = _plan(layout, num_gpus, micro_batch_size)
    with_slow = run_with(folder / "slow", plan, slow_gpus=slow_gpus, **nodes)
    sound = run_with(folder / "sound", plan, **nodes)
    step_s, sound_s = (float(str(_facts(run)["step_time_s"])) for run in (with_slow, sound))
    return Case(step_s, sound_s, why_run(with_slow))


def _facts(run: Path) -> dict[str, Any]:
    return dict(read_manifest(run / "raw" / "manifest.json").facts)


def _plan(layout: Layout, num_gpus: int, micro_batch_size: int) -> Callable[[Path], PlannedRun]:
    def plan_in(config: Path) -> PlannedRun:
        run = planned(config, "all")
        point = run.point.model_copy(update={
            "model": Catalogue(config).model("llama3-8b"), "layout": layout, "num_gpus": num_gpus,
            "global_batch_size": 64, "micro_batch_size": micro_batch_size, "sequence_length": 8192,
            "steps": run.point.steps.model_copy(update={"profiled": 2}),
            "cluster": run.point.cluster.model_copy(update={"gpus_per_node": PER_NODE}),
        })  # fmt: skip
        return run.model_copy(update={"point": point, "digest": point.digest()})

    return plan_in


def main() -> None:
    """Print the true cost of each case, and what `why` names."""
    for name, case in cases():
        true = 1.0 - case.sound_s / case.step_s
        named = [
            f"{one.cause} of {one.name} {percent(one.lost_s / case.answer.step_s)}" for one in case.answer.findings
        ]
        print(
            f"{name}: true {percent(true)} of {case.step_s:.2f} s; named: {', '.join(named) or 'nothing'}", flush=True
        )


if __name__ == "__main__":
    main()
