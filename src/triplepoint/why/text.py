"""Text of an answer to why a job is slow."""

import math
from collections.abc import Iterator

from triplepoint.text import percent
from triplepoint.units import S_PER_HOUR, counted, show_seconds
from triplepoint.why.answer import Answer, kind_name

_MAX_CAUSES, _MAX_PARTS = 10, 4
"""Number of causes, and of kinds, stages or replicas, that are listed."""
_STEPS = {
    "traces": "profiled step",
    "one rank": "profiled step",
    "step times": "measured step",
    "recording": "window",
    "operations": "recorded step",
}
"""Name of a step, by source of the answer."""
_BASIS = {
    "traces": "from its traces",
    "one rank": "from its trace",
    "step times": "from step times",
    "recording": "from sensors alone",
    "operations": "from a table of operations",
}
_J_PER_KWH = 1e3 * S_PER_HOUR
_LEAST_PART = 0.001
"""Smallest slowdown beyond 1 that is listed."""


def render(answer: Answer) -> str:
    """Return the text of an answer: its sentence, the causes, the steps behind it, heat and notes."""
    has_sensors = any(math.isfinite(gpu.temp_c) for gpu in answer.sensed)
    heat_and_notes = ([answer.heat] if has_sensors else []) + [*answer.gpus, *answer.notes]
    if answer.origin == "simulated" and answer.sensed:
        heat_and_notes.insert(0, "These GPUs are simulated: they differ as the model draws them; no GPU was measured.")
    simulated = " (simulated)" if answer.origin == "simulated" else ""
    blocks = [[f"{answer.name}{simulated}: {answer.sentence}"], [*_causes(answer)], [*_steps(answer)], heat_and_notes]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _steps(answer: Answer) -> Iterator[str]:
    """Yield lines on the GPUs, steps and source of an answer, then on the replay and on step times."""
    mean = " (mean)" if answer.num_steps > 1 else ""
    kind = "simulated step" if answer.origin == "simulated" else _STEPS[answer.source]
    steps = f"{counted(answer.num_steps, kind)} of {show_seconds(answer.step_s)}{mean}"
    yield f"{counted(answer.num_gpus, answer.unit)}, {steps}, {_BASIS[answer.source]}"
    if answer.is_replayed:
        yield from _replayed(answer)
    if answer.step_times is not None:
        yield from (f"  {line}" for line in answer.step_times.sentences())


def _replayed(answer: Answer) -> Iterator[str]:
    """Yield lines on the slowdown by replay, and on its parts."""
    slow = answer.slowdown
    without_s, ideal_s = (show_seconds(float(times.mean())) for times in (slow.replayed_s, slow.ideal_s))
    yield (
        f"  slowdown {slow.slowdown:.3f}: the step takes {without_s} without late starts, and would take {ideal_s} if "
        "equal operations lasted equally long"
    )
    if answer.num_steps > 1:
        worst = int(slow.of_steps.argmax())
        yield f"  per step: {slow.of_steps.min():.3f} to {slow.of_steps[worst]:.3f}"
    replica = "rank" if answer.is_by_rank else "replica"
    by_kind = {kind_name(kind): value for kind, value in slow.by_kind.items()}
    for title, slowdowns in (("by kind", by_kind), ("by stage", slow.by_stage), (f"by {replica}", slow.by_dp)):
        large = [(key, value) for key, value in slowdowns.items() if value - 1 >= _LEAST_PART][:_MAX_PARTS]
        if large and len(slowdowns) > 1:
            yield f"  {title}: {', '.join(f'{key} {value:.3f}' for key, value in large)}"
    if slow.slowdown - 1 >= _LEAST_PART and slow.share_of_workers >= 0:
        worker = ", ".join(
            f"{replica} {dp}{'' if answer.is_by_rank else f' stage {stage}'}" for dp, stage in slow.top_workers
        )
        share = percent(slow.share_of_workers, 0)
        yield f"  share of what is lost: slowest workers ({worker}) {share}{_last_stage(answer)}"
    yield f"  late starts of operations: {percent(slow.launch_slowdown - 1, 2)} of the step"


def _last_stage(answer: Answer) -> str:
    """Return the share of the last stage in words; empty if there is one stage."""
    share = answer.slowdown.share_of_last_stage
    return "" if math.isnan(share) else f", last stage {percent(share, 0)}".replace("-0 %", "0 %")


def _causes(answer: Answer) -> Iterator[str]:
    """Yield a table of the causes, with evidence and advice below each."""
    rows = answer.rows()
    if not rows:
        if answer.source in ("step times", "recording") and answer.num_gpus > 1:
            yield "Ranks wait for each other, so step times and clocks can miss one that is late: traces show it."
        return
    yield "causes, and what each costs the whole job:"
    lines = [[answer.unit, "cause", "step %", f"{answer.unit} h/day", "kWh/day"]]
    for row in rows[:_MAX_CAUSES]:
        energy_j = row["lost_energy_per_day_j"]
        lines.append([
            row["gpu"], row["cause"], f"{'up to ' * row['is_bound']}{100 * row['lost_share']:.1f}",
            f"{row['lost_gpu_hours_per_day']:.3g}", "" if energy_j is None else f"{energy_j / _J_PER_KWH:.3g}",
        ])  # fmt: skip
    if all(row["lost_energy_per_day_j"] is None for row in rows):
        lines = [line[:-1] for line in lines]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for number, line in enumerate(lines):
        yield ("  " + "  ".join(map(str.ljust, line, widths))).rstrip()
        if number:
            yield f"      {rows[number - 1]['evidence']}"
            to_do = "to do if it were measured" if answer.origin == "simulated" else "to do"
            yield f"      {to_do}: {rows[number - 1]['advice']}"
    if len(rows) > _MAX_CAUSES:
        yield f"  and {len(rows) - _MAX_CAUSES} smaller ones: --json has all"
