"""Advice on a run or a cluster: hardware first, then placement of pipeline stages and power limits of single GPUs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from triplepoint.advise.recommend.degraded import Degraded, with_slow_findings
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
from triplepoint.advise.recommend.placement_gain import Gain, Proposal, find_proposals, gain_of, simulate_layers
from triplepoint.advise.recommend.power_limits import GOALS, Goal, Limits, check_spare, find_limits, with_leakage
from triplepoint.advise.recommend.reasons import reasons_of
from triplepoint.advise.recommend.step_check import unexplained_step
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
from triplepoint.trace.taxonomy import load_scheme
from triplepoint.why.answer import Answer
from triplepoint.why.sources import why

NEEDED = ("model", "tp", "pp", "dp", "global_batch_size", "micro_batch_size")
"""Settings without which a job cannot be simulated."""


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
        considered: Placements with a known gain, the best first: it is proposed. With layers to judge, their placement.
        reasons: Sentences on why the placement is recommended or not.
        limits: Power limits of single GPUs with a gain, under the recommended placement.
        outlook: Effect of the drift of slots at later times; None without a run that is long enough.
        is_split_asked: Whether the user gave the split of layers to judge.
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
    considered: Sequence[Proposal]
    reasons: list[str]
    limits: list[Limits]
    outlook: Outlook | None = None
    is_split_asked: bool = False
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
    def proposal(self) -> Proposal | None:
        """Proposed placement, its step and its gain; None if no other has a shorter step."""
        return self.considered[0] if self.considered else None

    @property
    def proposed(self) -> Placement | None:
        """Best other placement, or the one to judge; None if none has a shorter step."""
        return self.proposal and self.proposal.placement

    @property
    def after(self) -> Outcome | None:
        """Predicted step under the proposed placement."""
        return self.proposal and self.proposal.after

    @property
    def gain(self) -> Gain | None:
        """Predicted gain of the proposed placement over the present one."""
        return self.proposal and self.proposal.gain

    @property
    def is_accepted(self) -> bool:
        """Whether another placement is recommended."""
        return self.gain is not None and self.gain.is_accepted

    def is_recommended(self, proposal: Proposal) -> bool:
        """Return whether one of the considered placements is the recommended one."""
        return self.is_accepted and proposal is self.proposal

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
    spare_w: float = 0.0,
    goals: Sequence[Goal] = GOALS,
) -> Advice:
    """Return the recommendations for a run.

    Args:
        folder: `results/runs/<run>`.
        config: Folder of the configuration.
        layers: Layers of each stage to judge. Empty: search for the best.
        progress: Called with lines of progress.
        spare_w: Power that each node has to spare besides its GPUs. Unit: W.
        goals: What power limits of single GPUs are for.

    Raises:
        UserError: If a file is missing, the run is no training run or cannot be simulated, or its GPUs have no use for
            the power to spare.
    """
    learned = learn(folder, config)
    point = read_planned_run(folder / "point.json").point
    if not point.knows(*NEEDED):
        raise UserError(
            f"{folder.name}: model, layout or batch of the recorded job are not known; describe it (docs/own_job.md)"
        )
    if point.hosts or point.gpu_power_limits_w:
        learned = as_placed(learned, point)
    site = Site(point, learned_cluster(learned), config)
    check_spare(site, spare_w)
    explained, notes = explain_run(folder, config, progress)
    advice = _advice(folder.name, site, learned, step_times_s(folder), layers, explained, spare_w, goals)
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
    spare_w: float = 0.0,
    goals: Sequence[Goal] = GOALS,
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
        best = considered[0] if considered else None
        recommended = best.placement if best and best.gain.is_accepted else site.present
        is_sound = all(outlier.is_minor for outlier in outliers)
        limits = find_limits(site, learned, recommended, spare_w, goals) if is_sound and not withheld else []
        outlook = predict_drift(site, learned) if learned and measured_s.size and not withheld else None
    except PointError as error:
        raise UserError(f"{name}: cannot be simulated: {error}") from None
    reasons = [f"Placement and power limits are {withheld}"] if withheld else reasons_of(site, before, best, hosts)
    return Advice(
        name, site, learned.passport if learned else None, outliers, hosts, measured_s, before, considered, reasons,
        limits, outlook, bool(layers), unexplained, withheld,
    )  # fmt: skip


def _withheld(outliers: Sequence[Outlier], unexplained: str) -> str:
    """Return that placement and power limits are not judged, and why; empty if they are."""
    degraded = [outlier.name for outlier in outliers if outlier.kind == "degraded" and not outlier.is_minor]
    if degraded:
        return f"not judged while hardware is degraded. Repair {' and '.join(degraded)} first, then ask again."
    return "not judged from a prediction that does not hold." if unexplained else ""


def _propose(site: Site, learned: Learned | None, before: Outcome, layers: tuple[int, ...]) -> list[Proposal]:
    """Return the placement to judge, or those that were found, the surest first."""
    if not layers:
        return find_proposals(site, learned, before)
    placement, after = simulate_layers(site, layers)
    return [Proposal(placement, after, gain_of(site, learned, before, placement, after))]


def _hosts(site: Site, learned: Learned | None) -> dict[int, str]:
    """Return the host of every node of the job."""
    known = {slot.node: slot.host for slot in learned.passport.slots} if learned else {}
    return {node: known.get(node, f"node{node}") for node in range(site.point.num_nodes)}
