"""The answer of a projection: rows, one sentence, a table as text, and how far such projections were right."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from triplepoint.advise.project.interval import Interval
from triplepoint.advise.project.network import Network, Scaled
from triplepoint.advise.project.project import IDLE_BELOW, Projected, Projection, Question, sizes_of
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.plan import run_id
from triplepoint.config.study import settings_of_study
from triplepoint.errors import UserError
from triplepoint.provenance import git_state
from triplepoint.text import LEAST_SHOWN, page, paragraph, percent, table
from triplepoint.units import BITS_PER_BYTE, MEGA, S_PER_HOUR

_SPEED = ("GPUs", "step\ns", "efficiency\n%", "million\ntokens/s", "slowest GPU\n% slower")
_POWER = ("GPUs", "all nodes\nMW", "energy\nJ/token", "hottest GPU\ndegC")
_FAILURES = ("GPUs", "mean time to\nfailure h", "checkpoint\nevery min", "goodput\n%", "kept million\ntokens/s")
_QUANTITIES = {
    "step_time_s": "step_time_s", "efficiency": "efficiency", "tokens_per_s": "tokens_per_s", "power_w": "power_w",
    "node_energy_per_token_j": "node_energy_per_token_j", "gpu_temp_max_c": "gpu_temp_max_c",
    "slowest_gpu_fraction": "slowest_gpu", "mttf_s": "mttf_s", "checkpoint_every_s": "checkpoint_every_s",
    "goodput": "goodput", "kept_tokens_per_s": "kept_tokens_per_s", "step_time_over_first": "against_first",
}  # fmt: skip
"""Keys of a row and attributes of `Projected`; each has `_lo` and `_hi` besides."""


def rows(found: Projection) -> list[dict[str, Any]]:
    """Return every size on every network as a row of table `projection`, the start first."""
    return [_record(one, found) for one in found.rows]


def _record(one: Projected, found: Projection) -> dict[str, Any]:
    cluster, values = one.scaled.cluster, dict[str, Any]()
    for key, name in _QUANTITIES.items():
        interval: Interval = getattr(one, name)
        values |= {key: interval.value, f"{key}_lo": interval.low, f"{key}_hi": interval.high}
    point = found.question.request.point
    return {
        "model": point.model.name,
        "run": run_id(point),
        "cluster": point.cluster.name,
        "num_gpus": one.num_gpus,
        "start_gpus": found.start,
        "global_batch_size": one.scaled.job.global_batch_size,
        "network": words(one.scaled),
        "topology": cluster.topology,
        "oversubscription": cluster.oversubscription,
        **values,
        "exposed_comm_s": one.prediction.exposed_comm_s,
        "bottleneck": one.prediction.bottleneck,
        "note": one.prediction.reason or None,
        "stack": one.scaled.job.stack,
        "git_commit": git_state(Path(__file__).parent)[0],
        "origin": "simulated",
    }


def words(scaled: Scaled) -> str:
    """Return a network in words, such as `8x400 Gb/s, rail_optimised, 2:1`."""
    cluster, parts = scaled.cluster, list[str]()
    if cluster.nics_per_node and cluster.nic_bandwidth:
        speed = cluster.nic_bandwidth.value * BITS_PER_BYTE / 1e9
        parts.append(f"{cluster.nics_per_node.value:g}x{speed:g} Gb/s")
    parts += [cluster.topology] if cluster.topology else []
    parts += [f"{cluster.oversubscription:g}:1"] if cluster.oversubscription > 1 else []
    return ", ".join(parts) or "one node"


def headline(found: Projection) -> str:
    """Return the answer in sentences: the largest size asked for, and there the networks against the first."""
    largest = max(found.rows, key=lambda one: (one.num_gpus != found.start, one.num_gpus))
    sized = [one for one in found.rows if one.num_gpus == largest.num_gpus]
    first = sized[0]
    said = [
        f"On {first.num_gpus:,} GPUs the job trains {_percent(first.efficiency, ' %')} as many tokens per GPU as on "
        f"{found.start:,}.",
        f"Failures and checkpoints leave {_percent(first.goodput, ' %')} of the time: "
        f"{_scaled(first.kept_tokens_per_s, MEGA)} million tokens/s.",
    ]
    if not math.isnan(first.power_w.value):
        said.append(f"All nodes draw {_scaled(first.power_w, MEGA, ' MW')}.")
    return " ".join([*said, *(_change(one) for one in sized[1:])])


def _change(one: Projected) -> str:
    """Return a network against the first, in a sentence."""
    value, low, high = (100 * (end - 1) for end in one.against_first)
    if max(abs(low), abs(high)) < 100 * LEAST_SHOWN:
        return f"On {words(one.scaled)} a step is as long."
    ends, how = ((low, high), "longer") if value > 0 else ((-high, -low), "shorter")
    tie = ", which may be none" if ends[0] <= 0 else ""
    return f"On {words(one.scaled)} a step is {abs(value):.1f} % {how} [{ends[0]:.1f}, {ends[1]:.1f}]{tie}."


def check_study(question: Question, config: Path) -> None:
    """Raise `UserError` if the cluster has none of the sizes but that of the point, so that no study can check them."""
    cluster = question.request.point.cluster.name
    most, start = Catalogue(config).cluster(cluster).num_gpus, question.request.point.num_gpus
    if not any(size <= most and size != start for size in sizes_of(question, config)):
        raise UserError(
            f"project: --study: cluster {cluster} has {most} GPUs, none of the sizes but the point's fits; name "
            "smaller ones with --gpus, or a larger cluster"
        )


def study_of(found: Projection, config: Path) -> str:
    """Return a study of the point and of the sizes that its cluster has, as YAML; `check_study` says whether it can."""
    point = found.question.request.point
    most = Catalogue(config).cluster(point.cluster.name).num_gpus
    sizes = {one.num_gpus: one.scaled.job.global_batch_size for one in found.rows if one.num_gpus <= most}
    fixed = settings_of_study(point)
    for name in ("num_gpus", "global_batch_size"):
        fixed.pop(name, None)
    axis = [{"num_gpus": size, "global_batch_size": batch} for size, batch in sorted(sizes.items())]
    about = f"Scaling of {run_id(point)} by data parallelism, batch {found.question.batch}."
    content = {"description": about, "defaults": fixed, "sweeps": [{"axes": {"layout": axis}}]}
    head = "# Written by `triplepoint project --study`: checks the projected efficiency at the sizes of the cluster.\n"
    return head + yaml.safe_dump(content, sort_keys=False, width=1000, default_flow_style=None)


def render(found: Projection) -> str:
    """Return the answer as text: the sentences, tables for each network, what was assumed, how far it was right."""
    blocks = [[*paragraph(headline(found)), *paragraph(f"Job: {run_id(found.question.request.point)}, simulated")]]
    by_network: dict[Network, list[Projected]] = {}
    for one in found.rows:
        by_network.setdefault(one.scaled.network, []).append(one)
    for sized in by_network.values():
        tables = [_table(headings, sized) for headings in (_SPEED, _POWER, _FAILURES)]
        blocks += [[f"Network of {words(sized[-1].scaled)}:", *tables[0]], *tables[1:]]
    notes = dict.fromkeys(
        f"{one.num_gpus:,} GPUs: {one.prediction.reason}" for one in found.rows if one.prediction.reason
    )
    largest = max(found.rows, key=lambda one: one.num_gpus).num_gpus
    idle = [
        words(one.scaled)
        for one in found.rows
        if one.num_gpus == largest and one.scaled.network in found.idle_topologies
    ]
    if idle:
        notes[
            f"the topology makes no difference on {'; '.join(idle)}: steps of {largest:,} GPUs are within "
            f"{percent(IDLE_BELOW)} of those on a fat tree without oversubscription. What this job sends out of a leaf "
            "or group is little, or hidden by computation; all-to-all between experts of several leaves is more."
        ] = None
    notes_lines = [line for note in notes for line in paragraph(f"Note: {note}")]
    return page([*blocks, _assumed(found), check(found), notes_lines])


def _assumed(found: Projection) -> list[str]:
    """Return what the numbers are of."""
    question = found.question
    batch = "grows with the number of GPUs" if question.batch == "grown" else "stays as it is"
    lines = [
        f"Brackets are 90 % intervals. The global batch {batch}. Step times are the median over {question.num_draws} "
        "draws of GPU parts; 'triplepoint predict' uses one draw."
    ]
    if question.measured_s is not None:
        predicted_s = found.rows[0].predicted_s
        off = 100 * (predicted_s / question.measured_s - 1)
        lines.append(
            f"They start from the measured step of {question.measured_s:.4g} s; {predicted_s:.4g} s were predicted "
            f"({off:+.1f} %)."
        )
    return paragraph(" ".join(lines))


def _table(headings: Sequence[str], sized: Sequence[Projected]) -> list[str]:
    return table([headings, *([_CELLS[name](one) for name in headings] for one in sized)], words=())


def _scaled(interval: Interval, unit: float, of: str = "") -> str:
    """Return a value, its unit and the ends of its interval, to three digits; `-` where it is not known."""
    if math.isnan(interval.value):
        return "-"
    value, low, high = (_digits(end / unit) for end in interval)
    return f"{value}{of}" if low == high else f"{value}{of} [{low}, {high}]"


def _digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _percent(interval: Interval, of: str = "") -> str:
    return _scaled(interval, 0.01, of)


_CELLS: Mapping[str, Callable[[Projected], str]] = MappingProxyType(
    dict(
        zip(
            (*_SPEED, *_POWER[1:], *_FAILURES[1:]),
            (
                lambda one: f"{one.num_gpus:,}",
                lambda one: _scaled(one.step_time_s, 1.0),
                lambda one: _percent(one.efficiency),
                lambda one: _scaled(one.tokens_per_s, MEGA),
                lambda one: _percent(one.slowest_gpu),
                lambda one: _scaled(one.power_w, MEGA),
                lambda one: _scaled(one.node_energy_per_token_j, 1.0),
                lambda one: _scaled(one.gpu_temp_max_c, 1.0),
                lambda one: _scaled(one.mttf_s, S_PER_HOUR),
                lambda one: _scaled(one.checkpoint_every_s, 60.0),
                lambda one: _percent(one.goodput),
                lambda one: _scaled(one.kept_tokens_per_s, MEGA),
            ),
            strict=True,
        )
    )
)
"""Text of a row below each heading."""


def check(found: Projection) -> list[str]:
    """Return how far predictions and ratios were right beyond the sizes that all was fitted to."""
    known = found.known
    rows = [("", "median\nerror %", "in 90 %\ninterval %", "rows")]
    rows += [(_KINDS[one.known], *_right(one.median_error, one.coverage, one.num_rows)) for one in known.left_out]
    ratios = _right(known.ratio_error, known.ratio_coverage, known.num_ratios)
    rows.append((f"efficiency against up to {known.most_gpus} GPUs of the same training", *ratios))
    return [
        f"Check: fitted to {known.num_fitted} published runs of up to {known.most_gpus} GPUs, larger ones predicted:",
        *table(rows, indent=2),
    ]


def _right(error: float, coverage: float, number: int) -> tuple[str, str, str]:
    return f"{100 * error:.1f}", f"{100 * coverage:.0f}", f"{number:,}"


_KINDS = {
    "all": "step time, all", "stack": "step time, software stack known from smaller runs",
    "training": "step time, same training known from smaller runs",
}  # fmt: skip
"""Which larger rows were predicted, in words."""
