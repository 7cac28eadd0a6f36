"""The frontier of time and energy in words, as JSON, and as a script that sets clocks."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from triplepoint.advise.frontier.frontier import FrontierAnswer, Outcome
from triplepoint.advise.frontier.plan import Plan
from triplepoint.simulate.timeline.schedule import BACKWARD, FORWARD
from triplepoint.units import KILO

NAMES = {
    "job": "one clock for all stages",
    "stage": "a clock for each stage",
    "direction": "a clock for each stage and direction",
    "pass": "a clock for each pass",
}
_LOCK = {
    "nvidia": ("nvidia-smi -i {gpus} -lgc {mhz}", ",", "nvidia-smi -rgc"),
    "amd": ("rocm-smi -d {gpus} --setperfdeterminism {mhz}", " ", "rocm-smi --resetperfdeterminism"),
}
"""Command that locks clocks of GPUs, what stands between these, and the command that undoes it."""


def headline(answer: FrontierAnswer) -> str:
    """Return what the plan saves, in one line."""
    now, then = answer.present, answer.verified
    saved, longer = 1.0 - then.gpu_energy_j / now.gpu_energy_j, then.step_s / now.step_s - 1.0
    return f"{NAMES[answer.plan.sharing]} saves {saved:.1%} of the GPUs' energy; steps are {_longer(longer)}"


def render(answer: FrontierAnswer) -> str:
    """Return the answer as lines for a person."""
    return "\n".join([*_lines(answer), "", *script(answer).splitlines()])


def content(answer: FrontierAnswer) -> dict[str, Any]:
    """Return the answer as keys of a JSON object."""
    present = answer.present
    return {
        "name": answer.name,
        "num_stages": answer.site.job.layout.pp,
        "num_microbatches": answer.site.job.num_microbatches,
        "bubble_fraction": answer.bubble_fraction,
        "is_held_by_power_limit": answer.is_held,
        "present": present,
        "slowdown": answer.slowdown,
        "verified": answer.verified,
        "steady": answer.steady,
        "stages": [
            {"stage": stage, "clock_mhz": mhz, "cap_w": float(answer.cap_w[stage])} | _directions(answer, stage)
            for stage, mhz in enumerate(answer.stage_clocks_mhz)
        ],
        "plans": [_of_plan(plan, present) for plan in answer.chosen.values()],
        "frontier": [_of_plan(plan, present) for plan in answer.points],
        "script": script(answer),
    }


def script(answer: FrontierAnswer) -> str:
    """Return a shell script that locks the clocks of every node's GPUs; nodes with the same clocks share lines."""
    site = answer.site
    command, between, undo = _LOCK[site.job.gpu.vendor]
    per_node, nodes = site.cluster.gpus_per_node, dict[tuple[tuple[int, tuple[int, ...]], ...], list[int]]()
    for node in range(-(-site.job.num_gpus // per_node)):
        by_clock: dict[int, list[int]] = {}
        for rank in range(node * per_node, min((node + 1) * per_node, site.job.num_gpus)):
            clock = answer.stage_clocks_mhz[site.job.mesh.place(rank).pp]
            by_clock.setdefault(clock, []).append(rank - node * per_node)
        nodes.setdefault(tuple((clock, tuple(gpus)) for clock, gpus in by_clock.items()), []).append(node)
    lines = [
        "#!/bin/sh",
        f"# Clocks of {answer.name}, nodes in rank order. As root: srun --ntasks-per-node=1 sh clocks.sh",
        f"# Undo: {undo}",
        'case "${SLURM_NODEID:?}" in',
    ]
    for clocks, numbers in nodes.items():
        locks = [command.format(gpus=between.join(map(str, gpus)), mhz=clock) for clock, gpus in clocks]
        lines.append(f"{'|'.join(map(str, numbers))}) {' && '.join(locks)} ;;")
    return "\n".join([*lines, "esac", ""])


def _lines(answer: FrontierAnswer) -> Iterator[str]:
    present, then, job = answer.present, answer.verified, answer.site.job
    yield f"{answer.name}: {headline(answer)}"
    yield (
        f"{job.layout.pp} stages, {job.num_microbatches} micro-batches, bubble {answer.bubble_fraction:.1%}; "
        f"{job.num_gpus} {job.gpu.name}, simulated"
    )
    yield _limit(answer)
    yield "without an interval: savings are the model's, compared with no step measured at locked clocks"
    yield "stages have paces of their own, in `triplepoint predict` that of the slowest: steps differ by up to 2 %"
    yield ""
    rows = [("", "step", "GPU energy", "highest node", "all nodes", "hottest die"), _outcome("as it is", present)]
    if answer.steady is not None:
        rows.append(_outcome("highest steady clocks", answer.steady))
    yield from _table([*rows, _outcome(NAMES[answer.plan.sharing], then)])
    yield ""
    head = f"what clocks would save with steps {answer.slowdown:.1%} longer (passes added up, not simulated whole)"
    yield head if answer.chosen else f"{head}: none is as fast"
    yield from _table([
        (f"  {NAMES[plan.sharing]}", f"{1.0 - plan.gpu_energy_j / present.gpu_energy_j:.1%}")
        for plan in answer.chosen.values()
    ])  # fmt: skip
    yield ""
    yield from _stages(answer)


def _limit(answer: FrontierAnswer) -> str:
    present, steady = answer.present, answer.steady
    if steady is None:
        return "the power limit does not hold clocks"
    saved, longer = 1.0 - steady.gpu_energy_j / present.gpu_energy_j, steady.step_s / present.step_s - 1.0
    return (
        f"the power limit holds clocks {present.throttle_fraction:.0%} of the time and costs "
        f"{present.lost_to_power_limit_fraction:.1%} of a step; the highest steady clocks under it save {saved:.1%} of "
        f"energy, and steps are {_longer(longer)}"
    )


def _longer(share: float) -> str:
    if abs(share) < 5e-4:
        return "as long"
    return f"{abs(share):.1%} {'longer' if share > 0 else 'shorter'}"


def _outcome(name: str, one: Outcome) -> tuple[str, ...]:
    return (
        name, f"{one.step_s:.3f} s", f"{one.gpu_energy_j / KILO:.4g} kJ", f"{one.node_w / KILO:.2f} kW",
        f"{one.hall_w / KILO:.4g} kW", f"{one.gpu_temp_c:.0f} degC",
    )  # fmt: skip


def _stages(answer: FrontierAnswer) -> Iterator[str]:
    """Yield the clocks of every stage: of the plan, and by direction where that is another plan."""
    has_directions = "direction" in answer.chosen
    heading = ("stage", "clock", "power of its heaviest pass", *(["forward", "backward"] if has_directions else []))
    rows = [heading]
    for stage, mhz in enumerate(answer.stage_clocks_mhz):
        own = _directions(answer, stage)
        rows.append((
            str(stage), f"{mhz} MHz", f"{answer.cap_w[stage]:.0f} W", *(f"{each} MHz" for each in own.values())
        ))  # fmt: skip
    yield from _table(rows)


def _directions(answer: FrontierAnswer, stage: int) -> dict[str, int]:
    plan = answer.chosen.get("direction")
    if plan is None:
        return {}
    kind = answer.site.prepared.order.kind[stage]
    return {
        f"{name}_clock_mhz": round(float(plan.clock_mhz[stage, kind == which][0]))
        for name, which in (("forward", FORWARD), ("backward", BACKWARD))
    }


def _of_plan(plan: Plan, present: Outcome) -> dict[str, Any]:
    return {
        "sharing": plan.sharing,
        "step_s": plan.step_s,
        "slowdown": plan.step_s / present.step_s - 1.0,
        "gpu_energy_j": plan.gpu_energy_j,
        "saved_fraction": 1.0 - plan.gpu_energy_j / present.gpu_energy_j,
        "node_w": float(np.max(plan.node_w)),
        "hall_w": float(np.sum(plan.node_w)),
        "lowest_clock_mhz": float(plan.clock_mhz.min()),
        "highest_clock_mhz": float(plan.clock_mhz.max()),
    }


def _table(rows: list[tuple[str, ...]]) -> Iterator[str]:
    if not rows:
        return
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    yield from ("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
