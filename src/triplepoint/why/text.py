"""Why a job is slow, as text."""

import math
from collections.abc import Iterator

from triplepoint.units import S_PER_HOUR, counted, show_seconds
from triplepoint.why.answer import Answer, kind_name

_MOST_CAUSES, _MOST_PARTS = 10, 4
_STEPS = {
    "traces": "profiled step",
    "one rank": "profiled step",
    "step times": "measured step",
    "recording": "window",
    "operations": "recorded step",
}
_SEEN = {
    "traces": "from its traces",
    "one rank": "from its trace",
    "step times": "from step times",
    "recording": "from sensors alone",
    "operations": "from a table of operations",
}
_J_PER_KWH = 1e3 * S_PER_HOUR
_LEAST_PART = 0.001
"""A slowdown nearer to 1 is not named."""


def render(answer: Answer) -> str:
    """Return an answer as lines of text: a sentence, causes, and what they rest on."""
    has_sensors = any(math.isfinite(one.temp_c) for one in answer.sensed)
    about = ([answer.heat] if has_sensors else []) + [*answer.gpus, *answer.notes]
    blocks = [[f"{answer.name}: {answer.sentence}"], [*_causes(answer)], [*_job(answer)], about]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _job(answer: Answer) -> Iterator[str]:
    steps = f"{counted(answer.num_steps, _STEPS[answer.source])} of {show_seconds(answer.step_s)}{_mean(answer)}"
    yield f"{counted(answer.num_gpus, answer.unit)}, {steps}, {_SEEN[answer.source]}"
    if answer.is_replayed:
        yield from _replayed(answer)
    if answer.step_times is not None:
        yield from (f"  {line}" for line in answer.step_times.sentences())


def _replayed(answer: Answer) -> Iterator[str]:
    """Yield what the replay says; of step times alone there is nothing to replay."""
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
    for what, by in (("by kind", by_kind), ("by stage", slow.by_stage), (f"by {replica}", slow.by_dp)):
        large = [(key, value) for key, value in by.items() if value - 1 >= _LEAST_PART][:_MOST_PARTS]
        if large and len(by) > 1:
            yield f"  {what}: {', '.join(f'{key} {value:.3f}' for key, value in large)}"
    if slow.slowdown - 1 >= _LEAST_PART and slow.share_of_workers >= 0:
        worker = ", ".join(
            f"{replica} {dp}{'' if answer.is_by_rank else f' stage {stage}'}" for dp, stage in slow.top_workers
        )
        yield f"  share of what is lost: slowest workers ({worker}) {slow.share_of_workers:.0%}{_last(answer)}"
    yield f"  late starts of operations: {slow.launch_slowdown - 1:.2%} of the step"


def _mean(answer: Answer) -> str:
    return " (mean)" if answer.num_steps > 1 else ""


def _last(answer: Answer) -> str:
    share = answer.slowdown.share_of_last_stage
    return "" if share != share else f", last stage {share:.0%}".replace("-0%", "0%")


def _causes(answer: Answer) -> Iterator[str]:
    rows = answer.rows()
    if not rows:
        if answer.source in ("step times", "recording") and answer.num_gpus > 1:
            yield "Ranks wait for each other, so step times and clocks can miss one that is late: traces show it."
        return
    yield "causes, and what each costs the whole job:"
    lines = [[answer.unit, "cause", "step %", f"{answer.unit} h/day", "kWh/day"]]
    for row in rows[:_MOST_CAUSES]:
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
            yield f"      to do: {rows[number - 1]['advice']}"
    if len(rows) > _MOST_CAUSES:
        yield f"  and {len(rows) - _MOST_CAUSES} smaller ones: --json has all"
