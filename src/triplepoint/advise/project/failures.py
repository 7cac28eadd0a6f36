"""Failures of long jobs: mean time to failure by GPUs, the best interval of checkpoints, and goodput."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import Field

from triplepoint.config.base import Strict
from triplepoint.units import S_PER_HOUR

_GPUS_PER_NODE = 8
"""GPUs of a node in published failure rates."""

PUBLISHED_MTTF_H: Mapping[int, float] = MappingProxyType({8: 47.7 * 24, 1024: 7.9, 16384: 1.8, 131072: 0.23})
"""Mean time to failure of a job by its GPUs. Unit: h. Source: arXiv:2410.21680, cluster RSC-1; the first two were
observed, the last two follow from 6.5 failures per 1,000 node-days. Per node-day, the observed ones are 3.2 and 3.6
times as many as that."""

FLEET_RATES: Mapping[str, float] = MappingProxyType(
    {"RSC-1": 6.5, "RSC-2": 2.34, "Llama 3": 1000 * 419 / (16384 / _GPUS_PER_NODE * 54)}
)
"""Failures per 1,000 node-days of whole fleets. Source: arXiv:2410.21680; 419 unexpected interruptions of 16,384 H100
in 54 days, arXiv:2407.21783, table 5."""

_T90 = 2.920
"""95th percentile of Student's t with 2 degrees of freedom, three fleets less one."""


def fleet_factor() -> float:
    """Return the half-width, as a factor, of the 90 % prediction interval of another fleet's rate from these three."""
    logs = [math.log(rate) for rate in FLEET_RATES.values()]
    mean = sum(logs) / len(logs)
    sigma = math.sqrt(sum((value - mean) ** 2 for value in logs) / (len(logs) - 1))
    return math.exp(_T90 * sigma * math.sqrt(1 + 1 / len(logs)))


def mttf_h(num_gpus: int, rate: float | None = None) -> float:
    """Return the mean time to failure of a job. Unit: h.

    Args:
        num_gpus: GPUs of the job.
        rate: Failures per 1,000 node-days of 8 GPUs. None: the published curve, interpolated linearly in logarithms;
            beyond its ends the time is inversely proportional to the number of GPUs.
    """
    if rate is not None:
        return 24 * 1000 * _GPUS_PER_NODE / (rate * num_gpus)
    sizes = list(PUBLISHED_MTTF_H)
    nearest = min(max(num_gpus, sizes[0]), sizes[-1])
    upper = next(size for size in sizes[1:] if nearest <= size)
    lower = sizes[sizes.index(upper) - 1]
    share = math.log(nearest / lower) / math.log(upper / lower)
    log_h = (1 - share) * math.log(PUBLISHED_MTTF_H[lower]) + share * math.log(PUBLISHED_MTTF_H[upper])
    return math.exp(log_h) * nearest / num_gpus


class Failures(Strict):
    """Failure rate of nodes, and the time lost by checkpoints and restarts."""

    rate: Annotated[float, Field(gt=0, le=1e5)] | None = None
    """Failures per 1,000 node-days of 8 GPUs. None: the published curve, `PUBLISHED_MTTF_H`."""
    rate_lo: Annotated[float, Field(gt=0, le=1e5)] | None = None
    """Lower end of the 90 % interval of the rate. None: no interval; for the published curve, that of fleets."""
    rate_hi: Annotated[float, Field(gt=0, le=1e5)] | None = None
    """Upper end of the 90 % interval of the rate."""
    checkpoint_s: Annotated[float, Field(gt=0, le=86400)] = 33.0
    """Time for which a checkpoint stops the job. Unit: s. Source of the default: up to 4 GB of each of 16,384 GPUs at 2
    TB/s, arXiv:2407.21783, section 3.3.1."""
    restart_s: Annotated[float, Field(ge=0, le=86400)] = 300.0
    """Time from a failure until the job continues from its last checkpoint. Unit: s. The default is assumed,
    consistent with over 90 % effective training time on 16,384 GPUs, arXiv:2407.21783, section 3.3.4."""

    def mttf_s(self, num_gpus: int, end: Literal["mid", "lo", "hi"] = "mid") -> float:
        """Return the mean time to failure, or an end of its 90 % interval. Unit: s."""
        mid_s = mttf_h(num_gpus, self.rate) * S_PER_HOUR
        if end == "mid":
            return mid_s
        if self.rate is None:
            return mid_s * fleet_factor() if end == "hi" else mid_s / fleet_factor()
        other = self.rate_lo if end == "hi" else self.rate_hi
        return mid_s if other is None else mttf_h(num_gpus, other) * S_PER_HOUR


@dataclass(frozen=True)
class Checkpoints:
    """The best interval of checkpoints.

    Attributes:
        interval_s: Time of work between two checkpoints. Unit: s.
        goodput: Share of the time spent on work that is kept, 0 to 1.
    """

    interval_s: float
    goodput: float


def goodput(interval_s: float, mttf_s: float, checkpoint_s: float, restart_s: float) -> float:
    """Return the share of the time spent on work that is kept, with exponentially distributed times to failure.

    Args:
        interval_s: Time of work between two checkpoints. Unit: s.
        mttf_s: Mean time to failure. Unit: s.
        checkpoint_s: Time for which a checkpoint stops the job. Unit: s.
        restart_s: Time from a failure until the job continues; it may fail again meanwhile. Unit: s.

    Source:
        Daly 2006, A higher order estimate of the optimum checkpoint interval, equation 20.
    """
    exponent = (interval_s + checkpoint_s) / mttf_s
    if exponent + restart_s / mttf_s > 500:  # such a job makes no progress
        return 0.0
    return interval_s / (mttf_s * math.exp(restart_s / mttf_s) * math.expm1(exponent))


def best_checkpoints(mttf_s: float, checkpoint_s: float, restart_s: float) -> Checkpoints:
    """Return the interval with the highest `goodput`, exactly; Young's and Daly's formulas are its first terms.

    The derivative is zero where `(1 - x) exp(x + d) = 1`, with the interval x and the checkpoint time d over `mttf_s`:
    `x = 1 + W(-exp(-1 - d))`, with Lambert's W.

    Args:
        mttf_s: Mean time to failure. Unit: s.
        checkpoint_s: Time for which a checkpoint stops the job. Unit: s.
        restart_s: Time from a failure until the job continues. Unit: s.
    """
    from scipy.special import lambertw

    interval_s = mttf_s * (1.0 + float(lambertw(-math.exp(-1.0 - checkpoint_s / mttf_s)).real))
    return Checkpoints(interval_s, goodput(interval_s, mttf_s, checkpoint_s, restart_s))
