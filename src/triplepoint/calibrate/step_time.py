"""Fit of step times: the usual factor of each GPU type, the ratio of each stack to it, and their uncertainties.

Constants are medians of the factors that predict single rows exactly. Uncertainties come from leaving out what a
prediction may lack (the version, the stack, its GPU type, its precision, experts) and taking the errors then.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from triplepoint.calibrate.layout_pairs import PRIOR, fit_layouts, pairs_of
from triplepoint.calibrate.protocol import COVERAGE, conformal_quantile, to_yaml
from triplepoint.calibrate.step_cases import Case, cluster_weights, read_cases
from triplepoint.calibrate.step_ratios import (
    FEW_ROWS,
    Key,
    Ratios,
    grouped,
    host_of,
    ratio_of,
    ratios_of,
    weighted_quantile,
)
from triplepoint.errors import UserError
from triplepoint.metrics import Z90
from triplepoint.simulate.calibration import (
    Calibration,
    Fitted,
    KindSpread,
    Place,
    StackConstant,
    Widths,
    features_of,
    kind_of,
)
from triplepoint.simulate.job import Job

_HEADER = """\
# Written by `triplepoint calibrate`: usual factors on the time of kernels by GPU type, the ratio of each version of a
# stack to them or the time of a launch; what they were fitted to; and how far predictions were off where a model, a
# stack, a GPU type, ... was left out. Nothing here is of a model.
"""

_LEAST_SPREAD = 0.012
"""Smallest standard deviation of a stack's rows, in log: the variation of one job's steps between runs."""

_UPPER_QUARTILE = 1.15
"""Standard deviations within which three of four values of a normal distribution lie."""

_PRIOR_WIDTH, _PRIOR_GROUPS = 0.08, 1.0
"""Prior width, in log, of leaving out a group, and its weight in groups. A choice."""


@dataclass(frozen=True)
class StepTimes:
    """The procedure: see `calibrate.protocol`.

    Attributes:
        tables: CSV files with the columns of `triplepoint predict --published` and `step_time_s`.
        target: YAML file to write.
        config: Folder of the configuration.
        say: Called with a line of text on every skipped row.
        stacks: Words of which one must occur in the framework's name; None selects all rows.
        max_gpus: Most GPUs of a row; None for no limit.
        known: Calibration to which the stacks of these rows are added; None to fit everything to these rows alone.
    """

    tables: Sequence[Path]
    target: Path
    config: Path
    say: Callable[[str], None]
    stacks: Sequence[str] | None = None
    max_gpus: int | None = None
    known: Calibration | None = None

    def read(self) -> list[Case]:
        """Return the selected rows. Raises `UserError` if a table cannot be read or no row is selected."""
        cases = [case for table in self.tables for case in read_cases(table, self.config, self.say)]
        if selected := [case for case in cases if self._is_selected(case)]:
            return selected
        raise UserError(f"no row left of {', '.join(map(str, self.tables))}; widen --stack or --max-gpus")

    def fit(self, measured: list[Case]) -> Calibration:
        """Return the constants of stacks, and the quantile of errors on held-out models."""
        selection = [", ".join(str(table) for table in self.tables)]
        selection += [f"frameworks with {' or '.join(self.stacks)}"] if self.stacks else []
        selection += [f"{self.max_gpus} GPUs or fewer"] if self.max_gpus else []
        if self.known:
            return added(self.known, measured, "; ".join(selection))
        return fit(measured, "; ".join(selection), self.config)

    def report(self, fitted: Calibration) -> list[str]:
        """Return a line of text on the stacks and the held-out quantile, and one on the widths."""
        content = fitted.fitted
        stacks, rows, quantile = len(content.stacks), content.num_rows, content.quantile
        widths = ", ".join(f"{name} {width:.3f}" for name, width in content.widths.model_dump().items())
        return [
            f"calibrate: {stacks} stacks from {rows} rows to {self.target}, quantile {quantile:.2f}",
            f"calibrate: standard deviations in log: {widths}",
        ]

    def files(self, fitted: Calibration) -> dict[Path, str]:
        """Return the file of constants."""
        return {self.target: _HEADER + to_yaml(fitted.fitted.model_dump(), width=118, flow=None)}

    def _is_selected(self, case: Case) -> bool:
        is_stack = not self.stacks or any(word.lower() in case.job.stack.lower() for word in self.stacks)
        return is_stack and (self.max_gpus is None or case.job.num_gpus <= self.max_gpus)


def fit(cases: Sequence[Case], fitted_to: str, config: Path) -> Calibration:
    """Fit a calibration to measured rows.

    Args:
        cases: Measured rows.
        fitted_to: Description of the rows.
        config: Folder of the configuration.
    """
    bare = _with_constants(cases, fitted_to, config)
    by_size = _held_out(cases, bare)
    spreads = _spreads(cases, by_size)
    stacks = [stack.model_copy(update={"spread": spreads[stack.stack]}) for stack in bare.fitted.stacks]
    update = {"stacks": stacks, "widths": _widths(cases, by_size, bare), "kinds": _kinds(cases, by_size)}
    known = Calibration(bare.fitted.model_copy(update=update), config)
    scores = [abs(by_size[case]) / known.scale(case.job, case.uncertainty) for case in cases]
    quantile = max(0.1, round(conformal_quantile(scores, cluster_weights(cases).tolist()), 4))
    layouts = fit_layouts(pairs_of(cases, known))
    return Calibration(known.fitted.model_copy(update={"quantile": quantile, "layouts": layouts}), config)


def added(known: Calibration, cases: Sequence[Case], fitted_to: str) -> Calibration:
    """Add the stacks of further rows to a calibration; usual factors, widths and other stacks stay as they are.

    Args:
        known: The calibration.
        cases: Measured rows, however few.
        fitted_to: Description of the rows.
    """
    fitted = known.fitted
    ratios = Ratios(fitted.gpus, {}, {}, math.log(fitted.experts_ratio))
    stacks = {constant.stack: constant for constant in fitted.stacks}
    for stack, rows in grouped(cases, lambda case: case.job.stack).items():
        log_ratio = ratio_of(rows, ratios.usual, 0.0)
        errors = [case.log_factor - ratios.usual(case.job) - log_ratio for case in rows]
        square = sum(error**2 for error in errors) + FEW_ROWS * fitted.widths.row**2
        stacks[str(stack)] = StackConstant(
            stack=str(stack),
            ratio=round(math.exp(log_ratio), 4),
            experts_ratio=fitted.experts_ratio,
            num_rows=len(rows),
            kinds=sorted({str(kind_of(case.job)) for case in rows}),
            spread=round(math.sqrt(square / (len(rows) + FEW_ROWS)), 4),
        )
    new = [place for case in cases if (place := _place(case.job)) not in fitted.places]
    update = {
        "fitted_to": f"{fitted.fitted_to}; added: {fitted_to}",
        "num_rows": fitted.num_rows + len(cases),
        "stacks": sorted(stacks.values(), key=lambda constant: constant.stack),
        "places": [*fitted.places, *new],
    }
    return Calibration(fitted.model_copy(update=update), known.config)


def _held_out(cases: Sequence[Case], calibration: Calibration) -> dict[Case, float]:
    """Return the log error of every row, predicted from models of other sizes.

    A row whose stack has only one model size of its kind (GPU type, precision, experts) is predicted by the whole fit
    instead. Otherwise its error would be that of an unknown kind, which the widths contain already.
    """
    errors = left_out(cases, lambda case: case.model_size, calibration)
    for rows in grouped(cases, lambda case: (case.job.family, kind_of(case.job))).values():
        if len({case.model_size for case in rows}) == 1:
            errors |= {case: case.log_error(calibration.constants(case.job)) for case in rows}
    return errors


def without(cases: Sequence[Case], gone: Iterable[Case], calibration: Calibration) -> Calibration:
    """Fit the constants without some rows, and keep the uncertainties of a calibration.

    Args:
        cases: Measured rows.
        gone: Rows to leave out.
        calibration: Calibration fitted to all rows.
    """
    removed = set(gone)
    others = [case for case in cases if case not in removed]
    if not others:
        return calibration
    bare, fitted = _with_constants(others, "", calibration.config).fitted, calibration.fitted
    spreads = {stack.stack: stack.spread for stack in fitted.stacks}
    stacks = [stack.model_copy(update={"spread": spreads[stack.stack]}) for stack in bare.stacks]
    kinds = {str(kind_of(case.job)) for case in others}
    cells = {(case.job.family, str(kind_of(case.job))) for case in others}
    spread_by_kind = [
        spread
        for spread in fitted.kinds
        if (spread.stack, spread.kind) in cells or (not spread.stack and spread.kind in kinds)
    ]
    update = {
        "stacks": stacks, "quantile": fitted.quantile, "widths": fitted.widths, "layouts": fitted.layouts,
        "kinds": spread_by_kind,
    }  # fmt: skip
    return Calibration(bare.model_copy(update=update), calibration.config)


def left_out(cases: Sequence[Case], key: Key, calibration: Calibration) -> dict[Case, float]:
    """Return the log error of every row, predicted by constants fitted without the rows of the same key."""
    errors: dict[Case, float] = {}
    for members in grouped(cases, key).values():
        others = without(cases, members, calibration)
        errors |= {case: case.log_error(others.constants(case.job)) for case in members}
    return errors


def _with_constants(cases: Sequence[Case], fitted_to: str, config: Path) -> Calibration:
    """Fit the constants to measured rows, with widths and spreads of 0."""
    ratios, by_stack = ratios_of(cases, ()), grouped(cases, lambda case: case.job.stack)
    hosts = {stack: host for stack, rows in by_stack.items() if (host := host_of(rows, ratios, ratios.by_stack[stack]))}
    if hosts:
        # Stacks bound by their host say nothing of kernel times, so the usual factors are fitted again without them.
        ratios = ratios_of(cases, hosts)
        hosts = {stack: host_of(by_stack[stack], ratios, 0.0) or host for stack, host in hosts.items()}
    stacks = [
        StackConstant(
            stack=str(stack),
            ratio=round(math.exp(hosts[stack][1] if stack in hosts else ratios.by_stack[stack]), 4),
            experts_ratio=round(math.exp(ratios.experts_of(rows[0].job)), 4),
            host_s=hosts[stack][0] if stack in hosts else None,
            num_rows=len(rows),
            kinds=sorted({str(kind_of(case.job)) for case in rows}),
            spread=0.0,
        )
        for stack, rows in sorted(by_stack.items(), key=lambda item: str(item[0]))
    ]
    fitted = Fitted(
        fitted_to=fitted_to,
        num_rows=len(cases),
        quantile=1.0,
        widths=Widths(row=0.0, version=0.0, stack=0.0, gpu=0.0, stack_on_gpu=0.0, experts=0.0, precision=0.0),
        layouts=PRIOR,
        experts_ratio=round(math.exp(ratios.experts), 4),
        gpus=ratios.gpus,
        stacks=stacks,
        places=list({_place(case.job): None for case in cases}),
    )
    return Calibration(fitted, config)


def _spreads(cases: Sequence[Case], errors: dict[Case, float]) -> dict[str, float]:
    """Return the standard deviation of each version of a stack, shrunk to that of all rows where it has few rows."""
    overall = _spread(cases, errors)
    return {
        str(stack): _shrunk_spread(rows, errors, overall)
        for stack, rows in grouped(cases, lambda case: case.job.stack).items()
    }


def _kinds(cases: Sequence[Case], errors: dict[Case, float]) -> list[KindSpread]:
    """Return the standard deviation by kind, and by kind on each stack, shrunk to the next larger group."""
    overall, spreads = _spread(cases, errors), []
    for kind, rows in grouped(cases, lambda case: str(kind_of(case.job))).items():
        of_kind = _shrunk_spread(rows, errors, overall)
        spreads.append(KindSpread(stack="", kind=str(kind), num_rows=len(rows), spread=of_kind))
        for stack, members in grouped(rows, lambda case: case.job.family).items():
            spread = _shrunk_spread(members, errors, of_kind)
            spreads.append(KindSpread(stack=str(stack), kind=str(kind), num_rows=len(members), spread=spread))
    return sorted(spreads, key=lambda spread: (spread.stack, spread.kind))


def _shrunk_spread(rows: Sequence[Case], errors: dict[Case, float], prior: float) -> float:
    """Return the standard deviation of some rows, shrunk to a prior where they are few."""
    variance = (len(rows) * _spread(rows, errors) ** 2 + FEW_ROWS * prior**2) / (len(rows) + FEW_ROWS)
    return round(max(math.sqrt(variance), _LEAST_SPREAD), 4)


def _spread(cases: Sequence[Case], errors: dict[Case, float]) -> float:
    """Return the standard deviation of a normal distribution with the same 90 % quantile of absolute errors."""
    return weighted_quantile([abs(errors[case]) for case in cases], cluster_weights(cases).tolist(), COVERAGE) / Z90


def _widths(cases: Sequence[Case], by_size: dict[Case, float], calibration: Calibration) -> Widths:
    """Return the uncertainties of jobs that lack something measured, such as the stack or the GPU type."""
    families = grouped(cases, lambda case: case.job.family)

    def width_within_stacks(part: Key) -> float:
        """Return the width of leaving out one part of a stack, over stacks with more than one."""
        divided = [case for rows in families.values() if len({part(case) for case in rows}) > 1 for case in rows]
        return _width(divided, lambda case: (case.job.family, part(case)), calibration)

    return Widths(
        row=round(_spread(cases, by_size), 4),
        version=width_within_stacks(lambda case: case.job.stack),
        stack=_width(cases, lambda case: case.job.family, calibration),
        gpu=_width(cases, lambda case: case.job.gpu.architecture, calibration),
        stack_on_gpu=width_within_stacks(lambda case: case.job.gpu.name),
        experts=width_within_stacks(lambda case: kind_of(case.job).experts),
        precision=width_within_stacks(lambda case: case.job.precision),
    )


def _width(cases: Sequence[Case], key: Key, calibration: Calibration) -> float:
    """Return the standard deviation of the mean errors of groups, each left out in turn; shrunk to the prior.

    It is that of a normal distribution with the same upper quartile, so that one or two outlying groups do not count.
    """
    errors = left_out(cases, key, calibration)
    groups = grouped(cases, key).values() if errors else ()
    means = [abs(float(np.average([errors[case] for case in rows], weights=cluster_weights(rows)))) for rows in groups]
    spread = float(np.quantile(means, 0.75)) / _UPPER_QUARTILE if means else 0.0
    variance = (len(means) * spread**2 + _PRIOR_GROUPS * _PRIOR_WIDTH**2) / (len(means) + _PRIOR_GROUPS)
    return round(math.sqrt(variance), 4)


def _place(job: Job) -> Place:
    features = features_of(job)
    return Place(
        stack=job.stack,
        gpu=features.gpu,
        num_gpus=job.num_gpus,
        sequence_length=job.sequence_length,
        num_parameters=float(f"{job.model.num_parameters:.3g}"),
    )
