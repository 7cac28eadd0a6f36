"""Why a placement is recommended or not, in sentences: the slowest stage before and after."""

from collections.abc import Mapping

from triplepoint.advise.recommend.placement import Outcome, Placement, Site
from triplepoint.advise.recommend.placement_gain import LEAST_GAIN, Proposal
from triplepoint.text import percent
from triplepoint.units import show_step


def reasons_of(
    site: Site,
    before: Outcome,
    proposal: Proposal | None,
    hosts: Mapping[int, str],
) -> list[str]:
    """Return sentences on the slowest stage before and after, and on why a placement is recommended or not.

    Args:
        site: The job.
        before: Step under the present placement.
        proposal: The placement to judge; None if none was found.
        hosts: Host of every node.
    """
    lines = [f"Now stage {_limit(site, site.present, before, hosts)}."]
    balance = 1.0 - float(before.busy_s.mean() / before.busy_s.max())
    if proposal is None:
        why = f"No placement was found that makes a step shorter by more than {percent(LEAST_GAIN)}"
        why = "The job has one pipeline stage" if site.point.layout.pp == 1 else why
        less = f"In perfect balance the longest stage would be busy {percent(balance)} less; layers cannot be split."
        return [*lines, f"{why}. {less}"]
    proposed, after, gain = proposal
    lines.append(f"Then stage {_limit(site, proposed, after, hosts)}.")
    change = float(after.busy_s.max() / before.busy_s.max()) - 1.0
    lines.append(
        f"The longest stage would be busy {percent(abs(change))} {'less' if change < 0 else 'longer'}, and the step "
        f"{percent(abs(gain.share))} {'shorter' if gain.share > 0 else 'longer'}."
    )
    if not gain.is_accepted:
        lines.append(
            "It would be slower." if gain.hi < 0 else "The gain may be none: its 90 % interval reaches below 0."
        )
    return lines


def _limit(site: Site, placement: Placement, outcome: Outcome, hosts: Mapping[int, str]) -> str:
    """Return words on the stage that is busy longest, its layers and its slowest GPU."""
    stage = int(outcome.busy_s.argmax())
    per_stage, per_node = site.point.num_gpus // site.point.layout.pp, site.cluster.gpus_per_node
    seats = [
        (placement.nodes[rank // per_node], rank % per_node)
        for rank in range(stage * per_stage, (stage + 1) * per_stage)
    ]
    node, device = max(seats, key=outcome.factor.__getitem__)
    factor = outcome.factor[node, device]
    layers = f" with {placement.layers[stage]} layers" if placement.layers else ""
    busy = f"{show_step(float(outcome.busy_s.max()))} of {show_step(outcome.step_time_s)}"
    text = f"{stage}{layers} is busy longest: {busy}"
    slower = f"gpu{device} of {hosts[node]} takes {factor:.2f} times as long as a sound GPU"
    return text if factor <= 1.01 else f"{text}; {slower}"
