"""The answer of a projection: rows, one sentence, a table as text, and how far such projections were right."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from triplepoint.advise.project.interval import Interval
from triplepoint.advise.project.network import Network, Scaled
from triplepoint.advise.project.project import Projected, Projection
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.plan import run_id
from triplepoint.config.study import settings_of_study
from triplepoint.errors import UserError
from triplepoint.provenance import git_state
from triplepoint.simulate.scaling import LeftOut
from triplepoint.units import BITS_PER_BYTE, MEGA, S_PER_HOUR

_OF_STEPS = ("GPUs", "step s", "efficiency %", "Mtoken/s", "MW", "node J/token", "max degC", "slowest GPU %")
_OF_FAILURES = ("GPUs", "MTTF h", "checkpoint min", "goodput %", "Mtoken/s kept")
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
    """Return the answer in a sentence: the largest size asked for, and there the networks against the first."""
    largest = max(found.rows, key=lambda one: (one.num_gpus != found.start, one.num_gpus))
    sized = [one for one in found.rows if one.num_gpus == largest.num_gpus]
    first = sized[0]
    said = (
        f"{first.num_gpus} GPUs: {_percent(first.efficiency)} % of the tokens per GPU of {found.start}, "
        f"{_scaled(first.kept_tokens_per_s, MEGA)} Mtoken/s kept at a goodput of {_percent(first.goodput)} %"
    )
    if not math.isnan(first.power_w.value):
        said += f", {_scaled(first.power_w, MEGA)} MW"
    for one in sized[1:]:
        said += f"; {_change(one)}"
    return said


def _change(one: Projected) -> str:
    """Return a network against the first, in words."""
    value, low, high = (100 * (end - 1) for end in one.against_first)
    tie = " (uncertain)" if low <= 0 <= high else ""
    return f"on {words(one.scaled)} steps take {value:+.1f} % [{low:+.1f}, {high:+.1f}]{tie}"


def study_of(found: Projection, config: Path) -> str:
    """Return a study of the point and of the sizes that its cluster has, as YAML.

    Raises:
        UserError: If its cluster has none of the sizes but that of the point.
    """
    point = found.question.request.point
    most = Catalogue(config).cluster(point.cluster.name).num_gpus
    sizes = {one.num_gpus: one.scaled.job.global_batch_size for one in found.rows if one.num_gpus <= most}
    if len(sizes) < 2:
        raise UserError(
            f"project: --study: cluster {point.cluster.name} has {most} GPUs, none of the sizes but the point's fits; "
            "name smaller ones with --gpus, or a larger cluster"
        )
    fixed = settings_of_study(point)
    for name in ("num_gpus", "global_batch_size"):
        fixed.pop(name, None)
    axis = [{"num_gpus": size, "global_batch_size": batch} for size, batch in sorted(sizes.items())]
    about = f"Scaling of {run_id(point)} by data parallelism, batch {found.question.batch}."
    content = {"description": about, "defaults": fixed, "sweeps": [{"axes": {"layout": axis}}]}
    head = "# Written by `triplepoint project --study`: checks the projected efficiency at the sizes of the cluster.\n"
    return head + yaml.safe_dump(content, sort_keys=False, width=1000, default_flow_style=None)


def render(found: Projection) -> str:
    """Return the answer as text: the sentence, a table for each network, and how far projections were right."""
    lines = [headline(found)]
    by_network: dict[Network, list[Projected]] = {}
    for one in found.rows:
        by_network.setdefault(one.scaled.network, []).append(one)
    for sized in by_network.values():
        lines += ["", f"{run_id(found.question.request.point)} on {words(sized[-1].scaled)}"]
        lines += [*_table(_OF_STEPS, sized), "", *_table(_OF_FAILURES, sized)]
    grown = "grows with GPUs" if found.question.batch == "grown" else "stays"
    if (measured_s := found.question.measured_s) is not None:
        predicted_s = found.rows[0].predicted_s
        lines += ["", f"from the measured step, {measured_s:.4g} s; predicted {predicted_s:.4g} s, "
                      f"{predicted_s / measured_s - 1:+.1%}"]  # fmt: skip
    lines += [
        "",
        f"global batch {grown}; [90 % intervals]; {found.question.num_draws} draws of parts, "
        "steps are their median; `triplepoint predict` has one draw",
        *check(found),
    ]
    notes = dict.fromkeys(
        f"{one.num_gpus} GPUs: {one.prediction.reason}" for one in found.rows if one.prediction.reason
    )
    return "\n".join([*lines, *notes])


def _table(headings: Sequence[str], sized: Sequence[Projected]) -> list[str]:
    cells = [headings, *([_CELLS[name](one) for name in headings] for one in sized)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def _scaled(interval: Interval, unit: float) -> str:
    """Return a value with the ends of its interval, to three digits; `-` where it is not known."""
    if math.isnan(interval.value):
        return "-"
    value, low, high = (f"{end / unit:.3g}" for end in interval)
    return value if low == high else f"{value} [{low}, {high}]"


def _percent(interval: Interval) -> str:
    return _scaled(interval, 0.01)


_CELLS: Mapping[str, Callable[[Projected], str]] = MappingProxyType(
    {
        "GPUs": lambda one: str(one.num_gpus),
        "step s": lambda one: _scaled(one.step_time_s, 1.0),
        "efficiency %": lambda one: _percent(one.efficiency),
        "Mtoken/s": lambda one: _scaled(one.tokens_per_s, MEGA),
        "MW": lambda one: _scaled(one.power_w, MEGA),
        "node J/token": lambda one: _scaled(one.node_energy_per_token_j, 1.0),
        "max degC": lambda one: _scaled(one.gpu_temp_max_c, 1.0),
        "slowest GPU %": lambda one: _percent(one.slowest_gpu),
        "MTTF h": lambda one: _scaled(one.mttf_s, S_PER_HOUR),
        "checkpoint min": lambda one: _scaled(one.checkpoint_every_s, 60.0),
        "goodput %": lambda one: _percent(one.goodput),
        "Mtoken/s kept": lambda one: _scaled(one.kept_tokens_per_s, MEGA),
    }
)
"""Text of a row below each heading."""


def check(found: Projection) -> list[str]:
    """Return how far predictions and ratios were right beyond the sizes that all was fitted to."""
    known = found.known
    lines = [
        f"check: fitted to {known.num_fitted} published rows of up to {known.most_gpus} GPUs, larger ones are off by:"
    ]
    lines += [f"  {_kind(one)}: {_right(one.median_error, one.coverage, one.num_rows)}" for one in known.left_out]
    ratios = _right(known.ratio_error, known.ratio_coverage, known.num_ratios)
    return [*lines, f"  efficiency against up to {known.most_gpus} GPUs of the same training: {ratios}"]


def _right(error: float, coverage: float, number: int) -> str:
    return f"{100 * error:.1f} % in the median, {100 * coverage:.0f} % of {number} in their 90 % interval"


def _kind(one: LeftOut) -> str:
    kinds = {"all": "all", "stack": "those whose stack was fitted", "training": "those whose training was fitted"}
    return kinds[one.known]
