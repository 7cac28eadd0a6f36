"""Advice as keys of a JSON object."""

from collections.abc import Sequence
from typing import Any

from triplepoint.advise.recommend.advice import Advice
from triplepoint.advise.recommend.hot_spots import Outlook, payback_h
from triplepoint.advise.recommend.kept_passports import Drift
from triplepoint.advise.recommend.placement_gain import Gain, Proposal
from triplepoint.advise.recommend.power_limits import Limits
from triplepoint.advise.recommend.step_check import median_step_s
from triplepoint.advise.recommend.text import headline, words
from triplepoint.advise.recommend.to_type import hosts_in_order, megatron_layout


def content(advice: Advice, drift: Sequence[Drift], restart_minutes: float) -> dict[str, Any]:
    """Return the advice as keys of a JSON object; arguments are those of `text.render`."""
    return {
        "answer": headline(advice),
        "passport": advice.passport and advice.passport.model_dump(),
        "outliers": [
            {name: getattr(one, name) for name in ("name", "host", "kind", "evidence", "action")}
            | {"cost_s": one.cost_s, "cost_lo_s": one.within_s and one.within_s.lo}
            | {"cost_hi_s": one.within_s and one.within_s.hi, "is_bound": one.is_bound, "is_minor": one.is_minor}
            for one in advice.outliers
        ],
        "drift": [
            {"slot": one.slot.name, "host": one.slot.host}
            | {"change": one.change, "change_lo": one.lo, "change_hi": one.hi}
            | {"since": one.since, "is_other_gpu": one.is_other_gpu}
            for one in drift
        ],
        "step_time_s": median_step_s(advice.measured_s),
        "predicted_step_time_s": advice.before.step_time_s,
        "unexplained": advice.unexplained or None,
        "proposed_step_time_s": advice.after.step_time_s if advice.after else None,
        "is_accepted": advice.is_accepted,
        **_ends("gain", advice.gain),
        "payback_h": None if advice.gain is None else payback_h(advice.gain.share, restart_minutes),
        **_proposed_content(advice),
        "reasons": advice.reasons,
        "considered": [_considered_content(advice, proposal) for proposal in advice.considered],
        "limits": [_limits_content(advice, one) for one in advice.limits],
        "outlook": advice.outlook and _outlook_content(advice.outlook, restart_minutes),
        "notes": list(advice.notes),
    }


def _ends(name: str, gain: Gain | None) -> dict[str, float | None]:
    names = (name, f"{name}_lo", f"{name}_hi")
    return dict(zip(names, (gain.share, gain.lo, gain.hi) if gain else (None,) * 3, strict=True))


def _proposed_content(advice: Advice) -> dict[str, Any]:
    placement = advice.proposed
    if placement is None:
        return dict.fromkeys(("hosts", "micro_batch_size", "pipeline_layers", "megatron_layout"))
    return {
        "hosts": hosts_in_order(advice, placement),
        "micro_batch_size": placement.micro_batch_size or advice.site.point.micro_batch_size,
        "pipeline_layers": list(placement.layers),
        "megatron_layout": megatron_layout(placement.layers),
    }


def _considered_content(advice: Advice, proposal: Proposal) -> dict[str, Any]:
    return {
        "what": words(advice, proposal.placement),
        "step_time_s": proposal.after.step_time_s,
        "is_accepted": advice.is_recommended(proposal),
        **_ends("gain", proposal.gain),
    }


def _limits_content(advice: Advice, one: Limits) -> dict[str, Any]:
    return {
        "goal": one.caps.goal,
        "is_accepted": one.gain.is_accepted,
        **_ends("gain", one.gain),
        "step_time_s": one.caps.after.step_time_s,
        "gpu_power_w": one.caps.after.power_w,
        "gpu_power_before_w": one.caps.before.power_w,
        "spare_w": one.caps.spare_w,
        "left_over_w": one.caps.left_over_w,
        "limits_w": [
            {"host": advice.hosts[node], "device": device, "limit_w": limit_w}
            for (node, device), limit_w in sorted(one.caps.limits_w.items())
        ],
    }


def _outlook_content(outlook: Outlook, restart_minutes: float) -> dict[str, Any]:
    return {
        "seen_h": outlook.seen_h,
        "moving": [{"slot": one.name, "contact_per_h": one.log_per_h} for one in outlook.moving],
        "ahead": [
            {"hours": one.hours, **_ends("gain", one.gain)}
            | {"payback_h": payback_h(one.gain.share, restart_minutes) if one.gain else None}
            for one in outlook.ahead
        ],
    }
