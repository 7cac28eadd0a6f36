"""Factors of a what-if analysis, each declared with its effect, values and source."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triplepoint.config.cluster import GPU_PATTERN
from triplepoint.errors import PointError, UserError, nearest, shown
from triplepoint.simulate.heat.nodes import is_known
from triplepoint.whatif import changes
from triplepoint.whatif.case import Case


@dataclass(frozen=True)
class Factor:
    """A factor of a what-if analysis.

    Attributes:
        name: Name on the command line and in tables.
        label: Name in figures.
        what: Description of the factor, one line.
        values: Allowed values, one line.
        default: Default value; None: a value is required.
        read: Converts a text to the value; raises ValueError for an invalid one.
        change: Returns the case with the factor changed.
        source: Reason why the changed case represents the factor, or its limitation.
        needs_power: Whether the factor acts through power and heat.
    """

    name: str
    label: str
    what: str
    values: str
    default: str | None
    read: Callable[[str], Any]
    change: Callable[[Case, Any, Path], Case]
    source: str
    needs_power: bool = False


@dataclass(frozen=True)
class Change:
    """A factor with its value.

    Attributes:
        name: Name of the factor.
        text: Value as on the command line.
        value: Converted value.
    """

    name: str
    text: str
    value: Any

    def apply(self, case: Case, config: Path) -> Case:
        """Return the case with the factor changed.

        Raises:
            UserError: If the case cannot have the factor.
        """
        factor = FACTORS[self.name]
        if factor.needs_power and not is_known(case.job.gpu, config):
            raise PointError(f"{self.name}: power and heat of {case.job.gpu.name} are not known; leave it out")
        return factor.change(case, self.value, config)


def _free_or_times(text: str) -> float:
    return math.inf if text == "free" else _number(text, 0.01, 1000.0)


def _number(text: str, least: float, most: float) -> float:
    value = float(text)
    if not least <= value <= most:
        raise ValueError
    return value


def _temperature(text: str) -> float:
    return _number(text, 0.0, 60.0)


def _limit(text: str) -> float:
    return math.inf if text == "none" else _number(text, 1.0, 1e5)


def _memory(text: str) -> float:
    return math.inf if text == "unlimited" else _number(text, 1.0, 1e5) * 1e9


def _domain(text: str) -> float:
    return math.inf if text == "all" else float(_whole(text))


def _whole(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,5}", text):
        raise ValueError
    return int(text)


def _adapters(text: str) -> tuple[int, float]:
    number, _, speed = text.partition("x")
    return _whole(number), _number(speed, 1.0, 1e5)


def _gpu_value(least: float, most: float) -> Callable[[str], tuple[str, float]]:
    """Return a reader of `nodeN.gpuM:NUMBER` with a number from `least` to `most`."""

    def read(text: str) -> tuple[str, float]:
        name, _, number = text.partition(":")
        if not re.fullmatch(GPU_PATTERN, name):
            raise ValueError
        return name, _number(number, least, most)

    return read


def _share(text: str) -> float | None:
    return None if text == "one" else _number(text, 0.01, 1.0)


def _one_of(*values: str) -> Callable[[str], str]:
    """Return a reader that accepts only some texts."""

    def read(text: str) -> str:
        if text not in values:
            raise ValueError
        return text

    return read


_ALL = (
    Factor(
        "gpu", "GPU type", "another GPU type in the same nodes", "a file in config/gpus/", None,
        str, changes.on_gpu, "kernels, memory, links, power and heat as its files have them; the network stays",
    ),
    Factor(
        "adapters", "adapters", "network adapters of a node", "NUMBERxGb/s, such as 8x400", None,
        _adapters, changes.with_adapters, "GPUs with an adapter each share none: config/collectives/links",
    ),
    Factor(
        "inlet", "inlet", "air or liquid at the inlet", "degC from 0 to 60", None,
        _temperature, changes.with_inlet, "config/heat: resistances do not depend on the inlet", True,
    ),
    Factor(
        "cooling", "cooling", "what takes heat from the GPUs",
        "ideal (dies stay at the inlet's temperature), liquid, air", "ideal", _one_of("ideal", "liquid", "air"),
        changes.with_coolant,
        "config/heat; ideal: a thousandth of the usual resistances, no preheat, no fans", True,
    ),
    Factor(
        "power_limit", "power limit", "power limit of every GPU", "none, or W within what the driver takes", "none",
        _limit, changes.with_power_limit, "config/power; without a limit kernels run at the highest clock heat allows",
        True,
    ),
    Factor(
        "slow_gpu", "slow GPU", "one GPU that computes more slowly", "nodeN.gpuM:SPEED, such as node0.gpu3:0.9", None,
        _gpu_value(0.01, 1.0), changes.with_slow_gpu, "key slow_gpus of a cluster",
    ),
    Factor(
        "bad_contact", "bad contact", "one GPU that touches its heat sink badly", "nodeN.gpuM:FACTOR, such as "
        "node1.gpu6:7", None, _gpu_value(1.0, 20.0), changes.with_bad_contact,
        "key bad_contact of a cluster's conditions", True,
    ),
    Factor(
        "bad_adapter", "bad adapter", "one node of less network bandwidth", "one (an adapter less), or the share left",
        "one", _share, changes.with_bad_adapter,
        "all that crosses nodes waits for the slowest: an upper bound where some groups pass by that node",
    ),
    Factor(
        "domain", "NVLink domain", "GPUs that scale-up links join", "all, or a number of GPUs", "all",
        _domain, changes.with_domain, "the link of the node, with its bandwidth for each GPU, over more or fewer GPUs",
    ),
    Factor(
        "network", "network between nodes", "communication between nodes", "free, or times the bandwidth", "free",
        _free_or_times, changes.with_network, "free: routes leave levels between nodes out; links inside still limit",
    ),
    Factor(
        "scale_up", "links in nodes", "communication inside nodes (NVLink, xGMI)", "free, or times its bandwidth",
        "free", _free_or_times, changes.with_scale_up, "free: routes leave the levels inside nodes out",
    ),
    Factor(
        "pipeline", "pipeline bubble", "waiting of pipeline stages for one another (the bubble)", "none", "none",
        lambda text: float(_one_of("none")(text) == "none"), changes.without_bubble,
        "stages run their passes one after the other, sends included; the step takes as long as its slowest stage",
    ),
    Factor(
        "memory", "memory", "memory of a GPU, with the fastest recomputation and micro-batch that fit in it",
        "unlimited, or GB (1e9 byte)", "unlimited", _memory, changes.with_memory,
        "recomputation none, selective or full, micro-batches in powers of two, chosen by predicted time of a step",
    ),
)  # fmt: skip

FACTORS = {factor.name: factor for factor in _ALL}
"""Factors by name, in the order in which they are applied: the cluster, its links, the pipeline, memory."""

USUAL = ("network", "scale_up", "pipeline", "memory", "power_limit", "cooling")
"""Factors that are changed if none is named. With all of them only computation at the highest clocks is left."""


def read_change(text: str) -> Change:
    """Parse a change such as `network`, `network=2` or `slow_gpu=node0.gpu3:0.9`.

    Raises:
        UserError: If there is no such factor, or it does not take the value.
    """
    name, has_value, value = text.partition("=")
    if name not in FACTORS:
        raise UserError(f"unknown factor {shown(name)}{nearest(name, FACTORS)}")
    factor = FACTORS[name]
    value = value if has_value else factor.default or ""
    try:
        return Change(name, value, factor.read(value))
    except ValueError:
        problem = f"found {shown(value)}" if has_value else "found no value"
        raise UserError(f"factor {name}: {problem}, expected {factor.values}") from None


def read_changes(texts: list[str]) -> list[Change]:
    """Parse changes and sort them in the order in which they are applied; without texts, the changes of `USUAL`.

    Raises:
        UserError: If a factor is unknown, does not take its value, or is named twice.
    """
    changes_read = [read_change(text) for text in texts or USUAL]
    names = [change.name for change in changes_read]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"factor {repeated} is named {names.count(repeated)} times; keep one")
    return sorted(changes_read, key=lambda change: list(FACTORS).index(change.name))


def without_power(changes: Sequence[Change], cases: Sequence[Case], config: Path) -> tuple[list[Change], str]:
    """Return the changes that all cases can have whose power may not be known, and a note on those left out.

    Args:
        changes: The changes.
        cases: The cases.
        config: Folder of the configuration.
    """
    unknown = [case.job.gpu.name for case in cases if not is_known(case.job.gpu, config)]
    left_out = [change.name for change in changes if unknown and FACTORS[change.name].needs_power]
    kept = [change for change in changes if change.name not in left_out]
    names = " and ".join(dict.fromkeys(unknown))
    return kept, f"power and heat of {names} are not known: without {' and '.join(left_out)}" if left_out else ""
