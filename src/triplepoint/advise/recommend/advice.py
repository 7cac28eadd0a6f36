"""Advice on a run or a cluster: hardware first, then placement of pipeline stages and power limits of single GPUs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from triplepoint.advise.recommend.hardware import Outlier, find_outliers
from triplepoint.advise.recommend.hot_spots import Outlook, predict_drift
from triplepoint.advise.recommend.passport import Learned, Passport, learn, of_passport
from triplepoint.advise.recommend.placement import (
    Outcome,
    Placement,
    Site,
    as_placed,
    learned_cluster,
    with_slow_gpus,
    with_usual_parts,
)
from triplepoint.advise.recommend.placement_gain import Gain, find_surest, gain_of, gain_within, simulate_layers
from triplepoint.advise.recommend.power_limits import GOALS, Caps, find_caps, leakage_of
from triplepoint.aggregate.steps import step_times_s
from triplepoint.config.base import parse
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.plan import read_planned_run
from triplepoint.config.study import Settings
from triplepoint.errors import PointError, UserError
from triplepoint.predictions import request_of
from triplepoint.simulate.memory.training import peak_memory
from triplepoint.simulate.power.gpu import Float
from triplepoint.simulate.predict.point import job_on_cluster
from triplepoint.text import percent

NEEDED = ("model", "tp", "pp", "dp", "global_batch_size", "micro_batch_size")
"""Settings without which a job cannot be simulated."""


@dataclass(frozen=True)
class Limits:
    """Power limits of single GPUs and their gain: of energy for goal `save`, of time for `move`."""

    caps: Caps
    gain: Gain


@dataclass(frozen=True, eq=False)
class Advice:
    """Recommendations for a run, or for a point on a cluster.

    Attributes:
        name: Name of the run or cluster.
        site: The job.
        passport: Passport of its slots. None: the cluster is as its file declares.
        outliers: Hardware that costs time, most first.
        hosts: Hosts of the run by node.
        measured_s: Measured step times in order, each of the slowest rank; empty without a run. Unit: s.
        before: Predicted step under the present placement.
        proposed: Best other placement, or the one to judge; None if none has a shorter step.
        after: Predicted step under the proposed placement.
        gain: Predicted gain of the proposed placement over the present one.
        reasons: Sentences on why the placement is recommended or not.
        limits: Power limits of single GPUs with a gain, under the recommended placement.
        outlook: Effect of the drift of slots at later times; None without a run that is long enough.
        is_split_asked: Whether the user gave the split of layers to judge.
    """

    name: str
    site: Site
    passport: Passport | None
    outliers: list[Outlier]
    hosts: Mapping[int, str]
    measured_s: Float
    before: Outcome
    proposed: Placement | None
    after: Outcome | None
    gain: Gain | None
    reasons: list[str]
    limits: list[Limits]
    outlook: Outlook | None = None
    is_split_asked: bool = False

    @property
    def present(self) -> Placement:
        """The present placement."""
        return self.site.present

    @property
    def is_accepted(self) -> bool:
        """Whether another placement is recommended."""
        return self.gain is not None and self.gain.is_accepted

    @property
    def accepted_limits(self) -> list[Limits]:
        """The recommended power limits."""
        return [limits for limits in self.limits if limits.gain.is_accepted]


def is_described(run: Path, config: Path) -> bool:
    """Return whether cluster and job of a run are known, so that placements can be simulated.

    Args:
        run: Folder of the run.
        config: Folder of the configuration.

    Raises:
        UserError: If the point of the run cannot be read.
    """
    point = read_planned_run(run / "point.json").point
    if point.recorded is None:
        return True
    return (config / "clusters" / f"{point.cluster.name}.yaml").is_file() and point.knows(*NEEDED)


def advise(folder: Path, config: Path, layers: tuple[int, ...] = ()) -> Advice:
    """Return the recommendations for a run.

    Args:
        folder: `results/runs/<run>`.
        config: Folder of the configuration.
        layers: Layers of each stage to judge. Empty: search for the best.

    Raises:
        UserError: If a file is missing, the run is no training run or cannot be simulated.
    """
    learned = learn(folder, config)
    point = read_planned_run(folder / "point.json").point
    if not point.knows(*NEEDED):
        raise UserError(
            f"{folder.name}: model, layout or batch of the recorded job are not known; describe it (docs/own_job.md)"
        )
    if point.hosts or point.gpu_power_limits_w:
        learned = as_placed(learned, point)
    return _advice(folder.name, Site(point, learned_cluster(learned), config), learned, step_times_s(folder), layers)


def advise_cluster(
    name: str, settings: Mapping[str, Any], config: Path, passport: Passport | None, layers: tuple[int, ...] = ()
) -> Advice:
    """Return the recommendations for a point on a cluster.

    Args:
        name: A file in `config/clusters/`.
        settings: Settings of the point by name, as a study has them.
        config: Folder of the configuration.
        passport: Kept passport of the cluster. None: the cluster is as its file declares.
        layers: Layers of each stage to judge. Empty: search for the best.

    Raises:
        UserError: If a setting is invalid, or the point cannot be simulated.
    """
    catalogue = Catalogue(config)
    parsed = parse(Settings, {"engine": "simulated"} | dict(settings) | {"cluster": name}, "recommend: --set")
    request = request_of(parsed, "recommend: --set", 1, catalogue)
    if request.invalid_because:
        raise UserError(f"recommend: {request.invalid_because}")
    memory = peak_memory(job_on_cluster(request.point, config, request.stack)[0])
    if memory.is_out_of_memory:
        raise UserError(f"recommend: does not fit on a rank of stage {memory.stage}: {memory.explain()}")
    point, cluster = request.point, catalogue.cluster(name)
    learned = of_passport(passport, cluster, config, point.num_nodes) if passport else None
    site = Site(point, learned_cluster(learned) if learned else with_usual_parts(cluster), config)
    return _advice(name, site, learned, np.empty(0), layers)


def _advice(name: str, site: Site, learned: Learned | None, measured_s: Float, layers: tuple[int, ...]) -> Advice:
    """Return the recommendations for a job. Raises `UserError` if it cannot be simulated."""
    if site.point.task == "inference":
        raise UserError(f"{name}: inference; placement is recommended for training runs")
    if not site.is_heat_known:
        raise UserError(f"{name}: power and heat of its GPUs are not described; triplepoint doctor --files says what")
    try:
        if learned is not None and learned.manifest is not None:
            site, learned = with_leakage(site, learned)
        before = site.step(site.present)
        if learned is not None:
            slowed = with_slow_gpus(site, learned, before)
            if slowed.cluster.slow_gpus != site.cluster.slow_gpus:
                site, before = slowed, slowed.step(slowed.present)
        proposed, after, gain = _propose(site, learned, before, layers)
        recommended = proposed if proposed and gain and gain.is_accepted else site.present
        limits = find_limits(site, learned, recommended)
        outlook = predict_drift(site, learned) if learned and measured_s.size else None
    except PointError as error:
        raise UserError(f"{name}: cannot be simulated: {error}") from None
    hosts = _hosts(site, learned)
    return Advice(
        name, site, learned.passport if learned else None, find_outliers(site, learned, before, hosts), hosts,
        measured_s, before, proposed, after, gain, _reasons(site, before, proposed, after, gain, hosts),
        limits, outlook, bool(layers),
    )  # fmt: skip


def _propose(
    site: Site, learned: Learned | None, before: Outcome, layers: tuple[int, ...]
) -> tuple[Placement, Outcome, Gain] | tuple[None, None, None]:
    """Return the placement to judge, or the best other one, with its step and its gain; None if there is none."""
    if not layers:
        return find_surest(site, learned, before) or (None, None, None)
    placement, after = simulate_layers(site, layers)
    return placement, after, gain_of(site, learned, before, placement, after)


def _hosts(site: Site, learned: Learned | None) -> dict[int, str]:
    """Return the host of every node of the job."""
    known = {slot.node: slot.host for slot in learned.passport.slots} if learned else {}
    return {node: known.get(node, f"node{node}") for node in range(site.point.num_nodes)}


def with_leakage(site: Site, learned: Learned) -> tuple[Site, Learned]:
    """Return the job and its passport with leakage estimated from clocks; unchanged if a clock is unknown.

    Args:
        site: The job, under the placement of the run.
        learned: Passport of its slots.

    Raises:
        PointError: If GPUs would shut down under its conditions.
    """
    clocks = {(slot.node, slot.device): slot.clock_mhz for slot in learned.passport.slots}
    known = {seat: clock_mhz for seat, clock_mhz in clocks.items() if clock_mhz is not None}
    if len(known) < max(len(clocks), site.point.num_gpus):
        return site, learned
    leakage = leakage_of(site, known)
    slots = (slot.model_copy(update={"leakage": leakage[slot.node, slot.device]}) for slot in learned.passport.slots)
    learned = replace(learned, passport=learned.passport.model_copy(update={"slots": tuple(slots)}))
    return replace(site, cluster=learned_cluster(learned)), learned


def find_limits(site: Site, learned: Learned | None, placement: Placement) -> list[Limits]:
    """Return power limits of single GPUs that save energy in equal time, or time at equal power, with their gain.

    There are none with faulty hardware, which sets the pace and is to be repaired first. There are none without the
    clocks of this job either, from which the leakage of GPUs is estimated.

    Args:
        site: The job.
        learned: Passport of its slots. None: the cluster is as its file declares.
        placement: Placement under which the limits apply.

    Raises:
        PointError: If GPUs would shut down under its conditions.
    """
    is_faulty = site.cluster.slow_gpus or site.cluster.conditions != site.cluster.conditions.without_faults
    is_known = learned is not None and all(slot.leakage is not None for slot in learned.passport.slots)
    if learned is None or learned.manifest is None or is_faulty or not is_known:
        return []
    limits = []
    for goal in GOALS:
        caps = find_caps(site, placement, goal)
        if caps is not None:
            limits.append(Limits(caps, gain_within(caps.share, caps.share, caps.share)))
    return limits


def _reasons(
    site: Site,
    before: Outcome,
    proposed: Placement | None,
    after: Outcome | None,
    gain: Gain | None,
    hosts: Mapping[int, str],
) -> list[str]:
    """Return sentences on the slowest stage before and after, and on why a placement is recommended or not."""
    lines = [f"Now stage {_limit(site, site.present, before, hosts)}."]
    balance = 1.0 - float(before.busy_s.mean() / before.busy_s.max())
    if proposed is None or after is None or gain is None:
        why = "The job has one pipeline stage" if site.point.layout.pp == 1 else "No other placement is shorter"
        less = f"In perfect balance the longest stage would be busy {percent(balance)} less; layers cannot be split."
        return [*lines, f"{why}. {less}"]
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
    text = f"{stage}{layers} is busy longest: {outcome.busy_s.max():.2f} s of {outcome.step_time_s:.2f} s"
    slower = f"gpu{device} of {hosts[node]} takes {factor:.2f} times as long as a sound GPU"
    return text if factor <= 1.01 else f"{text}; {slower}"
