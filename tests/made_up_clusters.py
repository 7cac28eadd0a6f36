"""Simulated clusters with one known fault each, as runs with all tables that `triplepoint why` reads.

Heat, power and clocks are the simulator's: with bad contact, blocked air, a warm inlet, a lower power limit or a pulled
brake its own closed loop says what sensors show and how much longer kernels last. Faults the simulator does not know
(a slow adapter, a slow host, late data, a GPU that is slow at its full clock) are put into the operations of a sound
run and replayed: what waits for them is moved by the same replay that `why` uses, their cause is not told.
"""

import shutil
from collections.abc import Mapping
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
from triplepoint.plan import select
from triplepoint.simulate.artefacts import simulate_run
from triplepoint.simulate.heat import warm
from triplepoint.simulate.heat.machine import Machine
from triplepoint.telemetry.align import align_run
from triplepoint.trace.join import trace_run
from triplepoint.trace.taxonomy import load_scheme
from triplepoint.why.operations import Operations
from triplepoint.why.replay import find_gaps, find_order, replay

CONFIG = Path("config")
PP, DP, PER_NODE = 2, 8, 2
"""Eight nodes of two GPUs: four nodes are a stage, and every transfer of the pipeline leaves its node."""
CLUSTER = "h200x32"


@dataclass(frozen=True)
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


def write_cluster(folder: Path, fault: Fault) -> Path:
    """Simulate a run on a cluster with a fault, and return the run's folder with its tables."""
    config = shutil.copytree(CONFIG, folder / "config")
    path = config / "clusters" / f"{CLUSTER}.yaml"
    cluster = yaml.safe_load(path.read_text())
    conditions = cluster["conditions"] | dict(fault.conditions or {})
    if fault.limit_w is not None or fault.inlet_c is not None:
        conditions["bad_contact"] = {f"node{fault.gpu[0]}.gpu{fault.gpu[1]}": 1.0}
    size = {"num_nodes": PP * DP // PER_NODE, "gpus_per_node": PER_NODE}
    path.write_text(yaml.safe_dump(cluster | size | {"conditions": conditions}))
    run = _planned(fault.seed)
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
    trace_run(out, load_scheme(), lambda line: None, 1)
    return out


@cache
def _selected() -> Plan:
    return select(CONFIG, None, ["cpu-local"], [CLUSTER])


def _planned(seed: int) -> PlannedRun:
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
    point = run.point.model_copy(update=changes)
    return run.model_copy(update={"run": f"made-up-{seed}", "point": point, "digest": point.digest()})
