"""Advice on a run or a cluster: hardware first, then placement of pipeline stages and power limits of single GPUs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from triplepoint.advise.recommend.hardware import Degraded, Outlier, find_outliers, with_slow_findings
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
from triplepoint.advise.recommend.placement_gain import (
    LEAST_GAIN,
    Gain,
    Proposal,
    find_proposals,
    gain_of,
    gain_within,
    simulate_layers,
)
from triplepoint.advise.recommend.power_limits import GOALS, Caps, find_caps, leakage_of
from triplepoint.aggregate.steps import step_times_s
from triplepoint.compare.sides import Context
from triplepoint.config.base import parse
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.cluster import place_of
from triplepoint.config.plan import read_planned_run
from triplepoint.config.study import Settings
from triplepoint.errors import PointError, UserError
from triplepoint.predictions import request_of
from triplepoint.simulate.memory.training import peak_memory
from triplepoint.simulate.power.gpu import Float
from triplepoint.simulate.predict.point import job_on_cluster
from triplepoint.text import percent
from triplepoint.trace.taxonomy import load_scheme
from triplepoint.units import show_seconds
from triplepoint.why.answer import Answer
from triplepoint.why.sources import why

NEEDED = ("model", "tp", "pp", "dp", "global_batch_size", "micro_batch_size")
"""Settings without which a job cannot be simulated."""
_SIMULATED_DIFFERENCE, _MEASURED_DIFFERENCE = 0.02, 0.05
"""Relative difference between the step of a run and the predicted one that needs no explanation: of a simulated run,
whose model is this one, and at least of a measured run, for which the 90 % interval of the model counts. Our choice."""
_NOT_SIMULATED = ("network", "launch", "data", "power limit")
"""Causes of a slow run that the prediction of its step does not have."""


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
        considered: All placements with a known gain, the proposed one first.
        unexplained: Sentence on a step that is not as predicted; empty if it is.
        withheld: That placement and power limits are not judged, and why; empty if they are.
        notes: What could not be determined, and why.
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
    considered: Sequence[Proposal] = ()
    unexplained: str = ""
    withheld: str = ""
    notes: tuple[str, ...] = ()

    @property
    def costly(self) -> list[Outlier]:
        """Hardware that costs at least 0.1 % of a step."""
        return [outlier for outlier in self.outliers if not outlier.is_minor]

    @property
    def minor(self) -> list[Outlier]:
        """Hardware that stands out and costs less."""
        return [outlier for outlier in self.outliers if outlier.is_minor]

    @property
    def is_simulated(self) -> bool:
        """Whether what is known of the GPUs is from a simulated run."""
        return self.passport is not None and self.passport.is_simulated

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


def advise(
    folder: Path,
    config: Path,
    layers: tuple[int, ...] = (),
    progress: Callable[[str], None] = lambda line: None,
) -> Advice:
    """Return the recommendations for a run.

    Args:
        folder: `results/runs/<run>`.
        config: Folder of the configuration.
        layers: Layers of each stage to judge. Empty: search for the best.
        progress: Called with lines of progress.

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
    explained, notes = explain_run(folder, config, progress)
    site = Site(point, learned_cluster(learned), config)
    advice = _advice(folder.name, site, learned, step_times_s(folder), layers, explained)
    return replace(advice, notes=notes + learned.notes)


def explain_run(
    folder: Path, config: Path, progress: Callable[[str], None] = lambda line: None
) -> tuple[Answer | None, tuple[str, ...]]:
    """Return why a run is slow, and notes: None with the reason if that cannot be told.

    Args:
        folder: `results/runs/<run>`.
        config: Folder of the configuration.
        progress: Called with lines of progress.
    """
    try:
        return why(str(folder), Context(folder.parents[1], config, load_scheme(), progress=progress)), ()
    except UserError as error:
        return None, (f"'triplepoint why' cannot explain the run: {error}",)


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


def _advice(
    name: str,
    site: Site,
    learned: Learned | None,
    measured_s: Float,
    layers: tuple[int, ...],
    explained: Answer | None = None,
) -> Advice:
    """Return the recommendations for a job. Raises `UserError` if it cannot be simulated."""
    if site.point.task == "inference":
        raise UserError(f"{name}: inference; placement is recommended for training runs")
    if not site.is_heat_known:
        raise UserError(f"{name}: power and heat of its GPUs are not described; triplepoint doctor --files says what")
    degraded = Degraded.of(explained, [place_of(slot) for slot in site.cluster.conditions.bad_contact])
    site = degraded.on(with_slow_findings(site, explained, degraded))
    is_degraded = bool(degraded.held or site.cluster.conditions.braked_nodes)
    try:
        if learned is not None and learned.manifest is not None and not is_degraded:
            site, learned = with_leakage(site, learned)
        before = site.step(site.present)
        if learned is not None:
            slowed = with_slow_gpus(site, learned, before)
            if slowed.cluster.slow_gpus != site.cluster.slow_gpus:
                site, before = slowed, slowed.step(slowed.present)
        hosts = _hosts(site, learned)
        outliers = find_outliers(site, learned, before, hosts, explained, degraded)
        unexplained = "" if is_degraded else unexplained_step(site, learned, before, measured_s, explained)
        withheld = _withheld(outliers, unexplained)
        considered = [] if withheld else _propose(site, learned, before, layers)
        proposed, after, gain = considered[0] if considered else (None, None, None)
        recommended = proposed if proposed and gain and gain.is_accepted else site.present
        is_sound = not any(not outlier.is_minor for outlier in outliers)
        limits = find_limits(site, learned, recommended) if is_sound and not withheld else []
        outlook = predict_drift(site, learned) if learned and measured_s.size and not withheld else None
    except PointError as error:
        raise UserError(f"{name}: cannot be simulated: {error}") from None
    reasons = [f"Placement and power limits are {withheld}"]
    if not withheld:
        reasons = _reasons(site, before, proposed, after, gain, hosts)
    return Advice(
        name, site, learned.passport if learned else None, outliers, hosts, measured_s, before, proposed, after, gain,
        reasons, limits, outlook, bool(layers), considered, unexplained, withheld,
    )  # fmt: skip


def _withheld(outliers: Sequence[Outlier], unexplained: str) -> str:
    """Return that placement and power limits are not judged, and why; empty if they are."""
    degraded = [outlier.name for outlier in outliers if outlier.kind == "degraded" and not outlier.is_minor]
    if degraded:
        return f"not judged while hardware is degraded. Repair {' and '.join(degraded)} first, then ask again."
    return "not judged from a prediction that does not hold." if unexplained else ""


def median_step_s(measured_s: Float) -> float | None:
    """Return the median measured step; None without a run. Unit: s."""
    return float(np.median(measured_s)) if measured_s.size else None


def shown(time_s: float) -> str:
    """Return a step, or a part of one, in words: to 0.01 s from a second on, else in a unit that suits it."""
    return f"{time_s:.2f} s" if time_s >= 1.0 else show_seconds(time_s)


def unexplained_step(
    site: Site, learned: Learned | None, before: Outcome, measured_s: Float, explained: Answer | None
) -> str:
    """Return a sentence on a step that is longer or shorter than predicted; empty if it is as predicted.

    Args:
        site: The job.
        learned: Passport of its slots; None without one.
        before: Predicted step.
        measured_s: Measured step times. Unit: s.
        explained: Why the run is slow; None if that is not known.
    """
    predicted_s, step_s = before.step_time_s, median_step_s(measured_s)
    if step_s is None or learned is None:
        return ""
    is_simulated = learned.passport.is_simulated
    least = _SIMULATED_DIFFERENCE if is_simulated else _MEASURED_DIFFERENCE
    low_s, high_s = predicted_s * (1.0 - least), predicted_s * (1.0 + least)
    if not is_simulated:
        model_low_s, model_high_s = site.interval_of(predicted_s)
        low_s, high_s = min(low_s, model_low_s), max(high_s, model_high_s)
    if low_s <= step_s <= high_s:
        return ""
    steps = f"Predicted step {shown(predicted_s)}, {'simulated' if is_simulated else 'measured'} {shown(step_s)}"
    if step_s < predicted_s:
        return f"{steps}: the prediction does not hold for this run."
    unknown = [
        f"{finding.cause} of {finding.name}"
        for finding in (explained.findings if explained else ())
        if finding.cause in _NOT_SIMULATED
    ]
    if unknown:
        return f"{steps}: the prediction lacks what 'triplepoint why' names, {' and '.join(unknown)}."
    return f"{steps}: something that sensors do not show slows it; run 'triplepoint why {learned.passport.run}'."


def _propose(site: Site, learned: Learned | None, before: Outcome, layers: tuple[int, ...]) -> list[Proposal]:
    """Return the placement to judge, or those that were found, the surest first."""
    if not layers:
        return find_proposals(site, learned, before)
    placement, after = simulate_layers(site, layers)
    return [(placement, after, gain_of(site, learned, before, placement, after))]


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
    # Faults that are not the passport's, such as slow GPUs, stay.
    conditions = site.cluster.conditions.model_copy(update={"leakage": learned_cluster(learned).conditions.leakage})
    return replace(site, cluster=site.cluster.model_copy(update={"conditions": conditions})), learned


def find_limits(site: Site, learned: Learned | None, placement: Placement) -> list[Limits]:
    """Return power limits of single GPUs that save energy in equal time, or time at equal power, with their gain.

    There are none without the clocks of this job, from which the leakage of GPUs is estimated. Hardware that costs time
    sets the pace and is to be repaired first, so the caller asks for none with it.

    Args:
        site: The job.
        learned: Passport of its slots. None: the cluster is as its file declares.
        placement: Placement under which the limits apply.

    Raises:
        PointError: If GPUs would shut down under its conditions.
    """
    is_known = learned is not None and all(slot.leakage is not None for slot in learned.passport.slots)
    if learned is None or learned.manifest is None or not is_known:
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
        why = f"No placement was found that makes a step shorter by more than {percent(LEAST_GAIN)}"
        why = "The job has one pipeline stage" if site.point.layout.pp == 1 else why
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
    text = f"{stage}{layers} is busy longest: {shown(float(outcome.busy_s.max()))} of {shown(outcome.step_time_s)}"
    slower = f"gpu{device} of {hosts[node]} takes {factor:.2f} times as long as a sound GPU"
    return text if factor <= 1.01 else f"{text}; {slower}"
