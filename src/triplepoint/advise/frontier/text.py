"""The frontier of time and energy in words, as JSON, and as a script that sets clocks."""

from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np

from triplepoint.advise.frontier.frontier import LEAST_SAVED, FrontierAnswer, Outcome, change_between
from triplepoint.advise.frontier.interval import Change, ChangeInterval
from triplepoint.advise.frontier.plan import Plan
from triplepoint.advise.frontier.solve import Sharing
from triplepoint.simulate.timeline.schedule import BACKWARD, FORWARD
from triplepoint.text import LEAST_SHOWN, page, paragraph, percent, percent_within, table
from triplepoint.units import KILO

NAMES = {
    "job": "one clock for all stages",
    "stage": "a clock for each stage",
    "direction": "a clock for each stage and direction",
    "pass": "a clock for each pass",
}
_BY_SHARING: tuple[Sharing, ...] = ("job", "stage", "pass")
_LOCK = {
    "nvidia": ("nvidia-smi -i {gpus} -lgc {mhz}", ",", "nvidia-smi -rgc"),
    "amd": ("rocm-smi -d {gpus} --setperfdeterminism {mhz}", " ", "rocm-smi --resetperfdeterminism"),
}
"""Command that locks clocks of GPUs, what stands between these, and the command that undoes it."""


def headline(answer: FrontierAnswer) -> str:
    """Return what the plan saves with its 90 % interval, or that no saving is certain, in a sentence or two."""
    within, change = answer.intervals["plan"], answer.change
    name = NAMES[answer.plan.sharing]
    kept = "The budget is kept already. " if answer.keeps_budget_now else ""
    if not answer.saves and not answer.is_needed:
        return (
            f"{kept}Nothing to save: no clocks save more than {percent(LEAST_SAVED)} of the GPUs' energy in a step "
            f"{_allowed(answer)}."
        )
    saved = f"{percent_within(change.saved, *within.saved)} of the GPUs' energy"
    if not answer.is_useful:
        return (
            f"{kept}Nothing to save with certainty: {name} would save {saved}, and the lower end of this 90 % interval "
            "is not positive."
        )
    longer = f"a step is {percent_within(change.longer, *within.longer)} longer"
    needed = "keeps the budget and " if answer.is_needed else ""
    return f"{kept}{name[0].upper()}{name[1:]} {needed}saves {saved}; {longer}."


def render(answer: FrontierAnswer) -> str:
    """Return the answer as text: the sentence, the step with and without the plan, its clocks, why, and the script."""
    return page([
        [*paragraph(headline(answer)), *paragraph(_job(answer))],
        _outcomes(answer), _stages(answer), _finer(answer), _why(answer), _next(answer),
    ])  # fmt: skip


def _next(answer: FrontierAnswer) -> list[str]:
    if not answer.is_useful:
        why = "no saving is certain" if answer.saves else "no clocks are worth setting"
        return paragraph(f"Next: allow longer steps with --slowdown. There is no script, since {why}.")
    return ["Next: run this script on every node as root; it was not run.", *script(answer).splitlines()]


def _allowed(answer: FrontierAnswer) -> str:
    return f"at most {percent(answer.slowdown)} longer" if answer.slowdown >= LEAST_SHOWN else "as long as now"


def content(answer: FrontierAnswer) -> dict[str, Any]:
    """Return the answer as keys of a JSON object."""
    present = answer.present
    return {
        "answer": headline(answer),
        "name": answer.name,
        "num_stages": answer.site.job.layout.pp,
        "num_microbatches": answer.site.job.num_microbatches,
        "bubble_fraction": answer.bubble_fraction,
        "is_held_by_power_limit": answer.is_held,
        "present": present,
        "slowdown": answer.slowdown,
        "verified": answer.verified,
        "change": _change(answer.change, answer.intervals["plan"]),
        "is_advised": answer.is_useful,
        "steady": answer.steady,
        "steady_change": _steady_change(answer),
        "stages": [
            {"stage": stage, "clock_mhz": mhz, "cap_w": float(answer.cap_w[stage])} | _directions(answer, stage)
            for stage, mhz in enumerate(answer.stage_clocks_mhz)
        ],
        "plans": [_of_plan(plan, answer) | _ends(answer.intervals[sharing]) for sharing, plan in answer.chosen.items()],
        "frontier": [_of_plan(plan, answer) for plan in answer.points],
        "script": script(answer) if answer.is_useful else None,
    }


def _steady_change(answer: FrontierAnswer) -> dict[str, float] | None:
    if answer.steady is None:
        return None
    return _change(change_between(answer.present, answer.steady), answer.intervals["steady"])


def _change(change: Change, within: ChangeInterval) -> dict[str, float]:
    """Return a change with its 90 % interval as keys of a JSON object."""
    return {
        "saved_fraction": change.saved,
        "saved_lo_fraction": within.saved.lo,
        "saved_hi_fraction": within.saved.hi,
        "longer_fraction": change.longer,
        "longer_lo_fraction": within.longer.lo,
        "longer_hi_fraction": within.longer.hi,
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
        f"# Simulated, 90 % intervals in brackets: {headline(answer)}",
        f"# Undo: {undo}",
        'case "${SLURM_NODEID:?}" in',
    ]
    for clocks, numbers in nodes.items():
        locks = [command.format(gpus=between.join(map(str, gpus)), mhz=clock) for clock, gpus in clocks]
        lines.append(f"{'|'.join(map(str, numbers))}) {' && '.join(locks)} ;;")
    return "\n".join([*lines, "esac", ""])


def _job(answer: FrontierAnswer) -> str:
    job = answer.site.job
    return (
        f"Job: {answer.name}, {job.layout.pp} stages, {job.num_microbatches} micro-batches, "
        f"{job.num_gpus} {job.gpu.name.upper()}, simulated"
    )


def _outcomes(answer: FrontierAnswer) -> list[str]:
    """Return the step as it is, at the highest steady clocks where those matter, and with the plan."""
    rows = [
        ("", "step\ns", "GPU energy\nkJ", "highest node\nkW", "all nodes\nkW", "hottest GPU\ndegC"),
        _outcome("as it is", answer.present),
    ]
    if answer.steady is not None:
        rows.append(_outcome("highest steady clocks", answer.steady))
    return table([*rows, _outcome(f"this plan: {NAMES[answer.plan.sharing]}", answer.verified)])


def _outcome(name: str, one: Outcome) -> tuple[str, ...]:
    return (
        name, f"{one.step_s:.3f}", f"{one.gpu_energy_j / KILO:.4g}", f"{one.node_w / KILO:.2f}",
        f"{one.hall_w / KILO:.4g}", f"{one.gpu_temp_c:.0f}",
    )  # fmt: skip


def _stages(answer: FrontierAnswer) -> list[str]:
    """Return the clocks of the plan by stage; neighbouring stages with the same numbers share a row."""
    cells = [(mhz, round(float(watts))) for mhz, watts in zip(answer.stage_clocks_mhz, answer.cap_w, strict=True)]
    runs = [list(run) for _, run in groupby(enumerate(cells), key=itemgetter(1))]
    rows = [("stage", "clock\nMHz", "power of its heaviest pass\nW")]
    for run in runs:
        (first, (mhz, watts)), last = run[0], run[-1][0]
        rows.append((str(first) if first == last else f"{first} to {last}", str(mhz), str(watts)))
    return table(rows)


def _finer(answer: FrontierAnswer) -> list[str]:
    """Return what clocks would save that are shared by more or by fewer passes."""
    head = f"Energy of GPUs saved at steps {percent(answer.slowdown)} longer, summed over passes"
    if not answer.chosen:
        return paragraph(f"{head}: none, no clocks are as fast.")
    rows = [
        (f"{percent_within(answer.saved(plan), *answer.intervals[sharing].saved)} with", NAMES[plan.sharing])
        for sharing, plan in answer.chosen.items()
    ]
    return [f"{head} and scaled to the simulated plan:", *table(rows, words={1}, indent=2)]


def _parts(answer: FrontierAnswer) -> str:
    """Return which part of the savings one lower clock for all stages gives, and which part clocks that differ."""
    one, each, finest = (answer.chosen.get(sharing) for sharing in _BY_SHARING)
    if one is None or each is None or finest is None:
        return ""
    saved, of_stages, of_all = (answer.saved(plan) for plan in (one, each, finest))
    return (
        f"One lower clock for all stages saves {percent(saved)}: passes wait for communication and the host, which do "
        f"not slow down. Clocks that differ between stages add {percent(max(of_stages - saved, 0.0))}, and clocks that "
        f"differ between passes {percent(max(of_all - of_stages, 0.0))} more: they use the bubble."
    )


def _why(answer: FrontierAnswer) -> list[str]:
    """Return where savings come from, what the power limit does, and how much is known."""
    present, steady = answer.present, answer.steady
    lines = [f"Why: ranks wait for other stages {percent(answer.bubble_fraction)} of the step (the bubble)."]
    if parts := _parts(answer):
        lines.append(parts)
    if steady is None:
        lines.append("The power limit does not lower clocks.")
    else:
        change, within = change_between(present, steady), answer.intervals["steady"]
        lines.append(
            f"The power limit lowers clocks {percent(present.throttle_fraction, 0)} of the time and costs "
            f"{percent(present.lost_to_power_limit_fraction)} of a step. At the highest steady clocks under it GPUs "
            f"save {percent_within(change.saved, *within.saved)} of the energy, and a step is {_longer(change.longer)}."
        )
    known = (
        "Brackets are 90 % intervals, from errors of power parameters, speeds of computation and links, inlet and "
        "parts, which both steps share. They lack errors of the form of the model: no step was measured at locked "
        "clocks. Here each stage runs at its own pace. In 'triplepoint predict' all run at that of the slowest, so its "
        "steps differ by up to 2 %."
    )
    return [*paragraph(" ".join(lines)), *paragraph(known)]


def _longer(share: float) -> str:
    if abs(share) < LEAST_SHOWN:
        return "as long as now"
    return f"{percent(abs(share))} {'longer' if share > 0 else 'shorter'}"


def _directions(answer: FrontierAnswer, stage: int) -> dict[str, int]:
    plan = answer.chosen.get("direction")
    if plan is None:
        return {}
    kind = answer.site.prepared.order.kind[stage]
    return {
        f"{name}_clock_mhz": round(float(plan.clock_mhz[stage, kind == which][0]))
        for name, which in (("forward", FORWARD), ("backward", BACKWARD))
    }


def _ends(within: ChangeInterval) -> dict[str, float]:
    return {
        "saved_lo_fraction": within.saved.lo,
        "saved_hi_fraction": within.saved.hi,
        "slowdown_lo": within.longer.lo,
        "slowdown_hi": within.longer.hi,
    }


def _of_plan(plan: Plan, answer: FrontierAnswer) -> dict[str, Any]:
    return {
        "sharing": plan.sharing,
        "step_s": plan.step_s,
        "slowdown": plan.step_s / answer.present.step_s - 1.0,
        "gpu_energy_j": answer.energy_j(plan),
        "saved_fraction": answer.saved(plan),
        "node_w": float(np.max(plan.node_w)),
        "hall_w": float(np.sum(plan.node_w)),
        "lowest_clock_mhz": float(plan.clock_mhz.min()),
        "highest_clock_mhz": float(plan.clock_mhz.max()),
    }
