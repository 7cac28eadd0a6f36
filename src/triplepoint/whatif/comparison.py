"""Files with comparisons of two clusters, `config/whatif/*.yaml`: the fastest points of both, and their difference."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from triplepoint.config.base import NAME_PATTERN, Strict
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.study import Settings, expand
from triplepoint.config.yaml_file import read, read_any
from triplepoint.errors import PointError, UserError, nearest
from triplepoint.predictions import Request, request_of
from triplepoint.prices import Prices
from triplepoint.processes import worker_pool
from triplepoint.verdicts.file import FILE, ChangeClaim, Claim
from triplepoint.verdicts.read import read_claims
from triplepoint.whatif.case import RUNS, Case
from triplepoint.whatif.changes import tuned
from triplepoint.whatif.explain import explain
from triplepoint.whatif.factors import read_changes
from triplepoint.whatif.rows import Row, case_rows, difference_rows

Side = Literal["from", "to"]

_SIGN = {"rises": 1, "falls": -1}
_CLAIM_QUANTITIES = {"tokens_per_s": ("step_time_s", -1)}
"""Quantities of claims: the corresponding quantity here, and -1 if it falls when that of the claim rises. Batches are
equal."""


class Comparison(Strict):
    """What is compared, and by which factors."""

    question: Annotated[str, Field(min_length=8)]
    """What is asked."""
    study: Annotated[str, Field(pattern=NAME_PATTERN)]
    """Study whose points are compared; of each model the fastest one of either side."""
    points: dict[str, Any] = {}
    """Settings of the points that count."""
    is_tuned: bool = False
    """Whether recomputation and micro-batch are the fastest that fit in memory, rather than those of the study: else
    `memory` costs what the study chose, not what memory forces."""
    sides: dict[Side, dict[str, Any]]
    """Settings of either side; the difference is `to` less `from`."""
    factors: list[str] = []
    """Factors, `NAME` or `NAME=VALUE`; those of `triplepoint whatif` if none is named."""
    with_shapley: bool = False
    """Whether all combinations of factors are simulated, for Shapley values: 64 of six instead of 8."""
    published: dict[str, Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]] = {}
    """By model, the claim in `config/published/claims.yaml` on which side is faster."""


def is_comparison(source: Path) -> bool:
    """Return whether a file is a comparison: YAML with `sides`. Raises `UserError` if it cannot be read."""
    content = read_any(source) if source.suffix in (".yaml", ".yml") else None
    return isinstance(content, dict) and "sides" in content


def rows_of(source: Path, config: Path, prices: Prices, say: Callable[[str], None]) -> list[Row]:
    """Return the rows of a comparison: both sides and the difference of each model.

    Args:
        source: File of the comparison; its name is that of the comparison.
        config: Folder of the configuration.
        prices: Prices for the cost; none: no cost.
        say: Called with a line on progress.

    Raises:
        UserError: If the file is invalid, or a side has no point that runs.
    """
    comparison = read(Comparison, source)
    if set(comparison.sides) != {"from", "to"}:
        raise UserError(f"{source}: sides: found {', '.join(comparison.sides) or 'none'}, expected from and to")
    changes = read_changes(comparison.factors)
    published = _read_published(comparison, source, config)
    fastest = _fastest(comparison, source, config)
    models = [model for model, side in fastest if side == "from" and (model, "to") in fastest]
    if not models:
        raise UserError(f"{source}: no model of study {comparison.study} runs on both sides; change points or sides")
    rows: list[Row] = []
    for number, model in enumerate(models, 1):
        say(f"whatif: {source.stem}: {model}, {number} of {len(models)}")
        cases = [fastest[model, "from"], fastest[model, "to"]]
        one, other = explain(cases, changes, config, prices, comparison.with_shapley)
        rows += case_rows(one, source.stem, "from")
        rows += case_rows(other, source.stem, "to")
        rows += difference_rows((one, other), config, source.stem, published.get(model))
    return rows


def _fastest(comparison: Comparison, source: Path, config: Path) -> dict[tuple[str, str], Case]:
    """Return the fastest point that runs, by model and side."""
    catalogue = Catalogue(config)
    candidates: list[tuple[str, str, Request]] = []
    for settings in expand(catalogue.study(comparison.study), catalogue.path_of_study(comparison.study)):
        for side, of_side in comparison.sides.items():
            if _has(settings, comparison.points | of_side, source):
                request = request_of(settings, source, len(candidates) + 1, catalogue, (settings.cluster,))
                candidates.append((settings.model, side, request))
    requests = [request for *_, request in candidates]
    with worker_pool() as pool:
        timed_cases = list(pool.map(partial(_timed, config=config, is_tuned=comparison.is_tuned), requests))
    fastest: dict[tuple[str, str], tuple[float, Case]] = {}
    for (model, side_name, _), timed in zip(candidates, timed_cases, strict=True):
        if timed is not None and timed[0] < fastest.get((model, side_name), (math.inf,))[0]:
            fastest[model, side_name] = timed
    return {key: case for key, (_, case) in fastest.items()}


def _has(settings: Settings, wanted: Mapping[str, Any], source: Path) -> bool:
    """Return whether a point has these settings. Raises `UserError` for an unknown one."""
    for key in wanted:
        if key not in Settings.model_fields:
            raise UserError(f"{source}: unknown setting {key!r}{nearest(key, Settings.model_fields)}")
    return all(getattr(settings, key) == value for key, value in wanted.items())


def _timed(request: Request, config: Path, is_tuned: bool) -> tuple[float, Case] | None:
    """Return the step time of a case (s), and the case; None if it does not run."""
    try:
        case = Case.of(request, config)
        if is_tuned:
            job = tuned(case, config).job
            settings = {"recompute": job.recompute, "micro_batch_size": job.micro_batch_size}
            point = request.point.model_copy(update={**settings, "recompute_layers": job.recompute_layers})
            case = Case.of(replace(request, point=point), config)
        prediction = case.predict(config)
    except PointError:
        return None
    return (prediction.step_time_s, case) if prediction.status in RUNS else None


def _read_published(comparison: Comparison, source: Path, config: Path) -> dict[str, dict[str, tuple[int, str]]]:
    """Return the published sign of the difference and its claim, by model and quantity."""
    known = read_claims(config)
    claims: dict[str, Claim] = {claim.id: claim for claim in known.content.claims} if known else {}
    found = {}
    for model, name in comparison.published.items():
        claim = claims.get(name)
        if not isinstance(claim, ChangeClaim) or claim.quantity not in _CLAIM_QUANTITIES:
            what = (
                f"says nothing of {', '.join(_CLAIM_QUANTITIES)}" if claim else f"is not there{nearest(name, claims)}"
            )
            raise UserError(f"{source}: published: {model}: claim {name!r} of {config / FILE} {what}")
        quantity, sign = _CLAIM_QUANTITIES[claim.quantity]
        is_forward = all(claim.after.get(key) == value for key, value in comparison.sides["to"].items())
        sign *= _SIGN[claim.direction] * (1 if is_forward else -1)
        found[model] = {quantity: (sign, f"{claim.says} ({claim.source})")}
    return found
