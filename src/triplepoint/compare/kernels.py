"""Kernels of two sides, matched by name, shape or operation, and their contributions to the difference of the step.

The time of a part is divided among its kernels in proportion to their total durations. So the contributions of all
kernels, and of time without kernels, add up to the difference of the step, and a kernel counts as far as it is exposed.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from triplepoint.compare.parts import StepDifference
from triplepoint.compare.traced import KernelName, Part, Traced
from triplepoint.trace.taxonomy import Kernel
from triplepoint.trace.taxonomy.neutral import neutral, neutral_name

Match = Literal["name", "shape", "kind", "operation", "one side", "no kernel"]

ABOUT: Mapping[Match, str] = {
    "name": "same name",
    "shape": "same operation and shape",
    "kind": "same operation and type",
    "operation": "same operation, other type or layout",
    "one side": "no counterpart",
    "no kernel": "time without a kernel",
}
"""Words for each kind of match."""
_SHAPE = re.compile(r"_((?:\d+x){2,3}\d+)$")
"""Shape of a GEMM at the end of the name of a simulated kernel; recorded names hold tiles, not shapes."""


@dataclass(frozen=True)
class KernelDifference:
    """Matched kernels, or kernels of one side without a match. Pairs hold the first side, then the other.

    Attributes:
        part: Part of the step.
        title: Name or operation that the kernels have in common; empty for time without a kernel.
        match: Property by which they are matched.
        names: Names in the traces of each side.
        counts: Calls in a step; of the other side scaled, so that the time of one call is as recorded.
        sums_s: Total duration in a step; of the other side scaled. Unit: s.
        steps_s: Share of the exposed time of the part; of the other side scaled. Unit: s.
    """

    part: Part
    title: str
    match: Match
    names: tuple[tuple[str, ...], tuple[str, ...]]
    counts: tuple[float, float]
    sums_s: tuple[float, float]
    steps_s: tuple[float, float]

    @property
    def difference_s(self) -> float:
        """Contribution to the difference of the step. Unit: s."""
        return self.steps_s[1] - self.steps_s[0]


_Key = tuple[Part, str]
"""Part of matched kernels, and the text that they have in common."""


def _by_name(kernel: KernelName) -> str | None:
    return kernel.name


def _by_shape(kernel: KernelName) -> str | None:
    shape = _SHAPE.search(kernel.name)
    return f"{_by_operation(kernel)} {shape[1]}" if shape else None


def _by_kind(kernel: KernelName) -> str | None:
    return neutral_name(kernel.name, Kernel(kernel.cls, kernel.kind))


def _by_operation(kernel: KernelName) -> str | None:
    return neutral(kernel.name, Kernel(kernel.cls, kernel.kind)).operation


_LEVELS: Sequence[tuple[Match, Callable[[KernelName], str | None]]] = (
    ("name", _by_name), ("shape", _by_shape), ("kind", _by_kind), ("operation", _by_operation),
)  # fmt: skip
"""Properties that matched kernels share, most specific first; kernels without a match go on to the next one."""


class _Side:
    """Kernels of one side, with the factors from total to exposed duration and to the first side's tokens per GPU."""

    def __init__(self, traced: Traced, scale: float, exposed_s: Mapping[Part, float]) -> None:
        """Divide the exposed time of each part by the total duration of its kernels.

        Args:
            traced: Traces of the side.
            scale: Factor on its times.
            exposed_s: Exposed time of each part, scaled. Unit: s.
        """
        self.kernels, self._scale = traced.kernels, scale
        self.sum_s: dict[Part, float] = {}
        for kernel, time in traced.kernels.items():
            self.sum_s[kernel.part] = self.sum_s.get(kernel.part, 0.0) + time.sum_s
        self._exposed_share = {
            part: exposed_s.get(part, 0.0) / (sum_s * scale) if sum_s else 0.0 for part, sum_s in self.sum_s.items()
        }

    def totals(self, kernels: Sequence[KernelName]) -> tuple[float, float, float]:
        """Return calls, total duration and share of the exposed time of some kernels of one part, scaled. Unit: s."""
        num_calls = self._scale * sum(self.kernels[kernel].num_calls for kernel in kernels)
        sum_s = self._scale * sum(self.kernels[kernel].sum_s for kernel in kernels)
        return num_calls, sum_s, sum_s * self._exposed_share[kernels[0].part] if kernels else 0.0


def kernel_differences(first: Traced, other: Traced, step: StepDifference) -> list[KernelDifference]:
    """Return the kernels of both sides, and time without kernels, largest contribution first.

    Args:
        first: Traces of the first side.
        other: Traces of the other side.
        step: Difference of the steps by part.

    Returns:
        Differences whose `difference_s` add up to that of the step.
    """
    sides = (
        _Side(first, 1.0, {one.part: one.first_s for one in step.parts}),
        _Side(other, step.scale, {one.part: one.other_s for one in step.parts}),
    )
    unmatched = (set(first.kernels), set(other.kernels))
    differences = []
    for match, key_of in _LEVELS:
        groups = [_groups(kernels, key_of) for kernels in unmatched]
        for key in groups[0].keys() & groups[1].keys():
            differences.append(_difference(key, match, (groups[0][key], groups[1][key]), sides))
            for kernels, group in zip(unmatched, groups, strict=True):
                kernels.difference_update(group[key])
    for kernel in unmatched[0]:
        differences.append(_difference((kernel.part, kernel.name), "one side", ([kernel], []), sides))
    for kernel in unmatched[1]:
        differences.append(_difference((kernel.part, kernel.name), "one side", ([], [kernel]), sides))
    differences += _without_kernels(sides, step)
    return sorted(differences, key=lambda one: (-abs(one.difference_s), one.part, one.title))


def _groups(kernels: set[KernelName], key_of: Callable[[KernelName], str | None]) -> dict[_Key, list[KernelName]]:
    """Return kernels by part and a property; those without the property are left out."""
    groups: dict[_Key, list[KernelName]] = {}
    for kernel in sorted(kernels):
        if text := key_of(kernel):
            groups.setdefault((kernel.part, text), []).append(kernel)
    return groups


def _difference(
    key: _Key, match: Match, kernels: tuple[Sequence[KernelName], Sequence[KernelName]], sides: tuple[_Side, _Side]
) -> KernelDifference:
    """Return the difference of matched kernels, or of kernels of one side if those of the other are empty."""
    first, other = (side.totals(group) for side, group in zip(sides, kernels, strict=True))
    names = (tuple(kernel.name for kernel in kernels[0]), tuple(kernel.name for kernel in kernels[1]))
    return KernelDifference(*key, match, names, *zip(first, other, strict=True))


def _without_kernels(sides: tuple[_Side, _Side], step: StepDifference) -> list[KernelDifference]:
    """Return the time of parts in which a side has no kernels: idle time, and time outside of the traces."""
    differences = []
    for one in step.parts:
        first_s = 0.0 if sides[0].sum_s.get(one.part) else one.first_s
        other_s = 0.0 if sides[1].sum_s.get(one.part) else one.other_s
        if first_s or other_s:
            differences.append(
                KernelDifference(one.part, "", "no kernel", ((), ()), (0.0, 0.0), (0.0, 0.0), (first_s, other_s))
            )
    return differences
