"""Specification of power by a utility or a data centre, and verdicts on it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from triplepoint import swings
from triplepoint.config.base import Strict, parse
from triplepoint.config.yaml_file import read_yaml
from triplepoint.errors import UserError
from triplepoint.metrics import Interval
from triplepoint.units import KILO

Band = tuple[float, float]
"""Lower and upper end of a frequency band. Unit: Hz."""
Level = Literal["node", "rack", "job"]
_Positive = Annotated[float, Field(gt=0)]


class BandLimit(Strict):
    """Limit of power swings in a frequency band."""

    low_hz: _Positive
    """Lower end of the band. Unit: Hz."""
    high_hz: _Positive
    """Upper end of the band. Unit: Hz."""
    rms_fraction: _Positive | None = None
    """Root mean square of swings in the band, over mean power. None: no limit."""
    rms_kw: _Positive | None = None
    """Root mean square of swings in the band. None: no limit. Unit: kW."""
    share: Annotated[float, Field(gt=0, le=1)] | None = None
    """Energy of swings in the band over that of all frequencies. None: no limit."""

    @model_validator(mode="after")
    def _is_a_band(self) -> Self:
        if not self.high_hz > self.low_hz:
            raise ValueError(f"high_hz is {self.high_hz:g} and low_hz {self.low_hz:g}, expected a higher one")
        if self.rms_fraction is self.rms_kw is self.share is None:
            raise ValueError("no limit, expected rms_fraction, rms_kw or share")
        return self


class SwingSpec(Strict):
    """Limits on power over time at a node, a rack or the job."""

    description: str = ""
    """Origin of the limits."""
    level: Level = "job"
    """Level of the limited power: the node or rack that swings most, or the whole job."""
    range_fraction: _Positive | None = None
    """Range of power from the 1st to the 99th percentile, over its mean. None: no limit."""
    range_kw: _Positive | None = None
    """Range of power from the 1st to the 99th percentile. None: no limit. Unit: kW."""
    ramp_up_kw_per_s: _Positive | None = None
    """Fastest rise between two samples. None: no limit. Unit: kW/s."""
    ramp_down_kw_per_s: _Positive | None = None
    """Fastest fall between two samples, a positive number. None: no limit. Unit: kW/s."""
    bands: tuple[BandLimit, ...] = ()
    """Limits of frequency bands."""

    @model_validator(mode="after")
    def _limits_something(self) -> Self:
        ranges = (self.range_fraction, self.range_kw, self.ramp_up_kw_per_s, self.ramp_down_kw_per_s)
        if not self.bands and all(limit is None for limit in ranges):
            raise ValueError("no limit, expected one of range_fraction, range_kw, ramp_up_kw_per_s, ramp_down_kw_per_s")
        return self


@dataclass(frozen=True)
class Verdict:
    """Verdict on one limit of a specification.

    Attributes:
        line: Key of the limit, for bands with their frequencies.
        unit: Unit of `found` and `limit`.
        found: Value of the recording.
        limit: Largest allowed value.
        within: 90 % interval of `found`; None without one.
    """

    line: str
    unit: str
    found: float
    limit: float
    within: Interval | None = None

    @property
    def highest(self) -> float:
        """Upper end of the interval, or the value without one."""
        return self.within.hi if self.within else self.found

    @property
    def passes(self) -> bool | None:
        """Whether power keeps to the limit; None if the interval holds the limit, so that it cannot be told."""
        low, high = self.within or (self.found, self.found)
        if high <= self.limit:
            return True
        return False if low > self.limit else None

    @property
    def words(self) -> str:
        """The verdict in words."""
        return {True: "passes", False: "fails", None: "cannot be told: the interval holds the limit"}[self.passes]

    @property
    def margin(self) -> float:
        """Distance below the limit, over the limit; negative above it."""
        return 1.0 - self.found / self.limit


def read_spec(path: Path) -> SwingSpec:
    """Return the specification in a YAML file. Raises `UserError` if it is invalid."""
    return parse(SwingSpec, read_yaml(path), path)


def verdicts(spec: SwingSpec, power_w: np.ndarray, period_s: float, window_s: float = 0.0) -> list[Verdict]:
    """Return the verdict on each limit of a specification.

    Args:
        spec: The specification.
        power_w: Samples at the level of the specification; shape (num_samples,). Unit: W.
        period_s: Time between samples. Unit: s.
        window_s: Averaging window of a sample. Unit: s.

    Raises:
        UserError: If samples do not resolve a band.
    """
    found = swings.swing(power_w, period_s)
    lines = [
        ("range_fraction", "1", found.fraction, spec.range_fraction),
        ("range_kw", "kW", (found.high_w - found.low_w) / KILO, spec.range_kw),
        ("ramp_up_kw_per_s", "kW/s", found.ramp_up_w_per_s / KILO, spec.ramp_up_kw_per_s),
        ("ramp_down_kw_per_s", "kW/s", found.ramp_down_w_per_s / KILO, spec.ramp_down_kw_per_s),
    ]
    for limit in spec.bands:
        check_band((limit.low_hz, limit.high_hz), len(power_w) * period_s, period_s, window_s)
        band = swings.in_band(power_w, period_s, limit.low_hz, limit.high_hz, window_s)
        where = _where(limit)
        lines += [
            (f"rms_fraction {where}", "1", band.rms_w / found.mean_w, limit.rms_fraction),
            (f"rms_kw {where}", "kW", band.rms_w / KILO, limit.rms_kw),
            (f"share {where}", "1", band.share, limit.share),
        ]
    return [Verdict(line, unit, value, limit) for line, unit, value, limit in lines if limit is not None]


def is_met(spec: SwingSpec, power_w: np.ndarray, period_s: float, window_s: float = 0.0) -> bool:
    """Return whether power keeps to all limits; arguments as `verdicts`."""
    return all(verdict.passes for verdict in verdicts(spec, power_w, period_s, window_s))


def tightened(spec: SwingSpec, judged: Iterable[Verdict]) -> SwingSpec:
    """Return a specification whose limits leave room for the upper ends of intervals of values.

    Args:
        spec: The specification.
        judged: Its verdicts; each limit is lowered by the value over the upper end of its interval.
    """
    share = {verdict.line: verdict.found / verdict.highest for verdict in judged if verdict.highest > 0.0}

    def lowered(limits: SwingSpec | BandLimit, names: Iterable[str], where: str = "") -> dict[str, float]:
        given = {name: getattr(limits, name) for name in names}
        return {name: limit * share.get(f"{name}{where}", 1.0) for name, limit in given.items() if limit is not None}

    bands = tuple(
        band.model_copy(update=lowered(band, ("rms_fraction", "rms_kw", "share"), f" {_where(band)}"))
        for band in spec.bands
    )
    names = ("range_fraction", "range_kw", "ramp_up_kw_per_s", "ramp_down_kw_per_s")
    return spec.model_copy(update={**lowered(spec, names), "bands": bands})


def _where(band: BandLimit) -> str:
    return f"{band.low_hz:g}-{band.high_hz:g} Hz"


def seen_part(band_hz: tuple[float, float], lasts_s: float, period_s: float, window_s: float) -> tuple[float, float]:
    """Return both ends of the part of a band that a recording resolves, in wrong order if it resolves none. Unit: Hz.

    Args:
        band_hz: Lower and upper end. Unit: Hz.
        lasts_s: Duration of the recording. Unit: s.
        period_s: Time between samples. Unit: s.
        window_s: Averaging window of a sample. Unit: s.
    """
    return max(band_hz[0], swings.LOWEST_PERIODS / lasts_s), min(band_hz[1], swings.highest_hz(period_s, window_s))


def check_band(band_hz: tuple[float, float], lasts_s: float, period_s: float, window_s: float) -> None:
    """Check that a recording resolves a whole band; arguments as `seen_part`.

    Raises:
        UserError: If it does not, with the part that it resolves.
    """
    low_hz, high_hz = seen_part(band_hz, lasts_s, period_s, window_s)
    if (low_hz, high_hz) == band_hz:
        return
    none = "it shows no part of that; record at a shorter period, or name a point file, which is simulated"
    part = f"it can be asked of {low_hz:.4g} to {high_hz:.4g} Hz" if high_hz > low_hz else none
    raise UserError(
        f"band {band_hz[0]:g} to {band_hz[1]:g} Hz: {'; '.join(_why(band_hz, lasts_s, period_s, window_s))}; {part}"
    )


def _why(band_hz: tuple[float, float], lasts_s: float, period_s: float, window_s: float) -> Iterator[str]:
    if band_hz[1] > (highest_hz := swings.highest_hz(period_s, window_s)):
        mean = f", each the mean of {window_s:.4g} s," if window_s > 1.001 * period_s else ""
        yield f"readings every {period_s:.4g} s{mean} show nothing above {highest_hz:.4g} Hz"
    if band_hz[0] < swings.LOWEST_PERIODS / lasts_s:
        yield f"{lasts_s:.4g} s tell lines apart from {swings.LOWEST_PERIODS / lasts_s:.4g} Hz up"
