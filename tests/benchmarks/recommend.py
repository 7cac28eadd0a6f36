"""`triplepoint recommend` on synthetic clusters: `python -m tests.benchmarks.recommend [--limits] [NUM]`.

A cluster is drawn (contacts, faulty slots, inlet, leakage of parts) and a run is simulated on it. The advisor sees the
telemetry of that run and the description of a sound cluster. What it recommends is then simulated on the truth.
Parts go with their node when nodes change places. With --limits, power limits of clusters without faults.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.points import simulated_plan
from triplepoint.advise.recommend.advice import Advice, advise
from triplepoint.advise.recommend.placement import Placement
from triplepoint.advise.recommend.power_limits import Limits, with_limits
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.cluster import ClusterConfig
from triplepoint.config.plan import PlannedRun
from triplepoint.files import write_text
from triplepoint.simulate.artefacts.simulate_run import job_of, simulate_run
from triplepoint.simulate.predict.prediction import predict_job
from triplepoint.telemetry.align import align_run

CONFIG = Path(__file__).parents[2] / "config"
CLUSTER = "h200x32"
_SPREAD = 0.045
_SPARE_W = 200.0
"""Power to spare in each node, where power limits are in force."""
JOBS = (
    "llama3-70b_h200x32_tp4-pp4-dp2-sp-zero1_mbs1_act_sim",
    "gpt3-175b_h200x32_tp4-pp8-dp1-sp_mbs1_act_sim",
    "llama3-70b_h200x32_tp8-pp2-dp2-sp-zero1_mbs1_act_sim",
    "gpt3-175b_h200x32_tp8-pp4-dp1-sp_mbs2_act_sim",
)


class Case(NamedTuple):
    """A synthetic cluster, the advice on it, and the true gain."""

    faults: dict[str, float]
    advice: Advice
    found: float
    """Share of a step that the placement saves on the true cluster; 0 without another placement."""
    cpu_s: float
    """CPU time of the advice. Unit: s."""

    @property
    def is_inside(self) -> bool:
        """Whether the promised interval includes the true gain, if a placement is recommended."""
        gain = self.advice.gain
        return not self.advice.is_accepted or (gain is not None and gain.lo <= self.found <= gain.hi)


def planned(text: str, repeat: int) -> PlannedRun:
    """Return the simulated run of a study with a prefix of its name, as one repeat with the trace of one rank."""
    run = next(entry.planned for entry in simulated_plan(CLUSTER).valid if text in entry.run)
    point = run.point.model_copy(update={"repeat": repeat, "trace_ranks": (0,)})
    return run.model_copy(update={"point": point, "digest": point.digest()})


def draw_cluster(seed: int, num_nodes: int = 4) -> ClusterConfig:
    """Return a cluster with contacts as parts have them, up to two faulty ones, and an inlet some kelvins off."""
    random, cluster = np.random.default_rng(seed), Catalogue(CONFIG).cluster(CLUSTER)
    names = [f"node{node}.gpu{gpu}" for node in range(num_nodes) for gpu in range(8)]
    contact = dict(zip(names, np.exp(_SPREAD * random.standard_normal(len(names))).tolist(), strict=True))
    faulty = random.choice(names, size=int(random.integers(0, 3)), replace=False).tolist()
    bad = {name: float(random.uniform(2.0, 5.0)) for name in faulty}
    conditions = cluster.conditions.model_copy(update={
        "contact": contact, "bad_contact": bad, "inlet_temp_c": cluster.conditions.inlet_temp_c + random.normal() * 2.0,
    })  # fmt: skip
    return cluster.model_copy(update={"conditions": conditions})


def simulate_on(truth: ClusterConfig, run: PlannedRun, folder: Path) -> Path:
    """Simulate a run on a made-up cluster; return its folder, after the telemetry stage."""
    config = shutil.copytree(CONFIG, folder / "truth")
    content = truth.model_dump_json(exclude_defaults=True)
    (config / "clusters" / f"{CLUSTER}.yaml").write_text(content)
    where = folder / "results" / "runs" / run.run
    write_text(where / "point.json", run.model_dump_json())
    simulate_run(run, where / "raw", config)
    align_run(where / "raw", where / "telemetry.parquet")
    return where


def true_step_s(truth: ClusterConfig, run: PlannedRun, placement: Placement) -> float:
    """Return the step time of a placement on the true cluster. Unit: s."""
    point = run.point.model_copy(update={"hosts": tuple(f"node{node}" for node in placement.nodes)})
    if placement.layers:
        layout = point.layout.model_copy(update={"pipeline_layers": placement.layers, "pipeline_ends": ()})
        point = point.model_copy(update={"layout": layout})
    if placement.micro_batch_size:
        point = point.model_copy(update={"micro_batch_size": placement.micro_batch_size})
    return predict_job(job_of(point, Catalogue(CONFIG)), None, CONFIG, truth).step_time_s


def run_case(seed: int, job: str) -> Case:
    """Return the advice on one cluster, and the true gain."""
    truth, run = draw_cluster(seed), planned(job, repeat=seed + 2)
    with tempfile.TemporaryDirectory() as name:
        folder = simulate_on(truth, run, Path(name))
        begun_s = time.process_time()
        advice = advise(folder, CONFIG)
        cpu_s = time.process_time() - begun_s
    found = 0.0
    if advice.is_accepted and advice.proposed is not None:
        # The run itself was simulated on the truth.
        found = 1.0 - true_step_s(truth, run, advice.proposed) / float(np.median(advice.measured_s))
    return Case(truth.conditions.bad_contact, advice, found, cpu_s)


def cases(number: int) -> Iterator[Case]:
    """Yield the cases of a number of clusters, with jobs in turn."""
    for seed in range(number):
        yield run_case(seed, JOBS[seed % len(JOBS)])


def limits_of(seed: int) -> Iterator[tuple[Limits, float, float]]:
    """Yield power limits advised on a cluster without faulty contacts, what they truly save, and the longer step.

    Every second four clusters have limits of 600 W in force, which the advisor knows, and 200 W to spare a node.
    """
    drawn, sound, limit_w = draw_cluster(seed), Catalogue(CONFIG).cluster(CLUSTER), 600.0 if seed // 4 % 2 else None
    truth, known = (
        one.model_copy(
            update={"conditions": one.conditions.model_copy(update={"bad_contact": {}, "power_limit_w": limit_w})}
        )
        for one in (drawn, sound)
    )
    run = planned(JOBS[seed % len(JOBS)], repeat=seed + 2)
    with tempfile.TemporaryDirectory() as name:
        folder, config = simulate_on(truth, run, Path(name)), shutil.copytree(CONFIG, Path(name) / "known")
        (config / "clusters" / f"{CLUSTER}.yaml").write_text(known.model_dump_json(exclude_defaults=True))
        advice = advise(folder, config)
        limits = list(advice.limits)
        if limit_w:
            limits += [one for one in advise(folder, config, spare_w=_SPARE_W).limits if one.caps.goal == "move"]
    for one in [] if advice.is_accepted else limits:
        before, after = (
            predict_job(job_of(run.point, Catalogue(CONFIG)), None, CONFIG, with_limits(truth, changed_w))
            for changed_w in ({}, one.caps.limits_w)
        )
        longer = after.step_time_s / before.step_time_s - 1.0
        assert before.power is not None and after.power is not None
        energy = (1.0 + longer) * after.power.gpu_power_w / before.power.gpu_power_w
        yield one, 1.0 - energy if one.caps.goal == "save" else -longer, longer


def main_limits(number: int) -> None:
    """Print a line for each advised change of power limits."""
    for seed in range(number):
        for one, true, longer in limits_of(seed):
            print(
                f"cluster {seed}, {one.caps.goal}, {one.caps.spare_w:g} W to spare: promised {one.gain.share:+.2%} "
                f"({one.gain.lo:+.2%} to {one.gain.hi:+.2%}), {'accepted' if one.gain.is_accepted else 'left'}; "
                f"true {true:+.2%}, step {longer:+.2%}",
                flush=True,
            )


def main() -> None:
    """Print a line for each cluster, then the sums."""
    if sys.argv[1:2] == ["--limits"]:
        main_limits(int(sys.argv[2]) if len(sys.argv) > 2 else 8)
        return
    all_cases = []
    for case in cases(int(sys.argv[1]) if len(sys.argv) > 1 else 20):
        all_cases.append(case)
        gain, named = case.advice.gain, {one.name for one in case.advice.outliers}
        promised = "none found" if gain is None else f"{gain.share:+.1%} ({gain.lo:+.1%} to {gain.hi:+.1%})"
        faults = ", ".join(f"{name} x{factor:.1f}" for name, factor in case.faults.items()) or "no fault"
        print(
            f"{case.advice.passport.run[:40]}: {faults}; named {len(named & set(case.faults))} of {len(case.faults)}, "
            f"{len(named - set(case.faults))} beside; promised {promised}, "
            f"{'accepted' if case.advice.is_accepted else 'left'}; true {case.found:+.1%}; {case.cpu_s:.1f} s of CPU",
            flush=True,
        )
    accepted = [case for case in all_cases if case.advice.is_accepted]
    print(
        f"{len(accepted)} of {len(all_cases)} accepted, {sum(case.is_inside for case in accepted)} of them inside "
        f"their interval, {sum(case.found < 0 for case in all_cases)} slower than before; "
        f"{np.mean([case.cpu_s for case in all_cases]):.0f} s of CPU each"
    )


if __name__ == "__main__":
    main()
