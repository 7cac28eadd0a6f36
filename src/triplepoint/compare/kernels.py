"""Kernels of two sides matched by name, shape or what they do, with what each contributes to the difference.

A part of the step is divided among its kernels in proportion to their summed durations, so that the contributions of
all kernels, and of what runs no kernel, add up to the difference of the step. Kernels that run at the same time, or
hidden behind others, thus count as far as they are exposed.
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
_SHAPE = re.compile(r"_((?:\d+x){2,3}\d+)$")
"""Shape of a GEMM at the end of a name, as simulated kernels have it; recorded names have tiles, not shapes."""


@dataclass(frozen=True)
class KernelDifference:
    """Kernels that were matched, or what one side has alone; values of both sides, the first one first.

    Attributes:
        part: Part of the step.
        title: What they are called: their name, or what they do.
        match: By what they were matched.
        names: Names in the traces, of either side.
        counts: Occurrences in a step, of the other side scaled: a single one takes as long as it did.
        sums_s: Summed duration in a step, of the other side scaled. Unit: s.
        steps_s: What they take of the step, of the other side scaled. Unit: s.
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
        """Return what they contribute to the difference of the step. Unit: s."""
        return self.steps_s[1] - self.steps_s[0]


_Key = tuple[Part, str]


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
"""Matching goes from the surest to the least sure; what is left over tries the next."""


def kernel_differences(first: Traced, other: Traced, step: StepDifference) -> list[KernelDifference]:
    """Return kernels of both sides, and time without kernels, the largest contribution first.

    Args:
        first: Traces of one side.
        other: Those of the other.
        step: The difference of the steps by part.

    Returns:
        Differences whose `difference_s` add up to that of the step.
    """
    left = (set(first.kernels), set(other.kernels))
    share = (_exposed_share(first, step, 0), _exposed_share(other, step, 1))
    found = []
    for match, key_of in _LEVELS:
        groups = tuple(_groups(kernels, key_of) for kernels in left)
        for key in groups[0].keys() & groups[1].keys():
            members = (groups[0][key], groups[1][key])
            found.append(_difference(key, match, members, (first, other), share, step.scale))
            for kernels, own in zip(left, members, strict=True):
                kernels.difference_update(own)
    for kernel in left[0]:
        key = (kernel.part, kernel.name)
        found.append(_difference(key, "one side", ([kernel], []), (first, other), share, step.scale))
    for kernel in left[1]:
        key = (kernel.part, kernel.name)
        found.append(_difference(key, "one side", ([], [kernel]), (first, other), share, step.scale))
    found += _without_kernels(first, other, step)
    return sorted(found, key=lambda one: (-abs(one.difference_s), one.part, one.title))


def _groups(kernels: set[KernelName], key_of: Callable[[KernelName], str | None]) -> dict[_Key, list[KernelName]]:
    groups: dict[_Key, list[KernelName]] = {}
    for kernel in sorted(kernels):
        if text := key_of(kernel):
            groups.setdefault((kernel.part, text), []).append(kernel)
    return groups


def _exposed_share(traced: Traced, step: StepDifference, side: Literal[0, 1]) -> dict[Part, float]:
    """Return the time each part takes of the step over the summed durations of its kernels; both scaled alike."""
    sums = _sums(traced)
    times = {one.part: (one.first_s, one.other_s)[side] for one in step.parts}
    scale = step.scale if side else 1.0
    return {part: times.get(part, 0.0) / (sum_s * scale) if sum_s else 0.0 for part, sum_s in sums.items()}


def _sums(traced: Traced) -> dict[Part, float]:
    sums: dict[Part, float] = {}
    for kernel, time in traced.kernels.items():
        sums[kernel.part] = sums.get(kernel.part, 0.0) + time.sum_s
    return sums


def _difference(
    key: _Key,
    match: Match,
    members: tuple[Sequence[KernelName], Sequence[KernelName]],
    traced: tuple[Traced, Traced],
    share: tuple[Mapping[Part, float], Mapping[Part, float]],
    scale: float,
) -> KernelDifference:
    counts, sums, steps = [], [], []
    for kernels, one, exposed, factor in zip(members, traced, share, (1.0, scale), strict=True):
        sum_s = factor * sum(one.kernels[kernel].sum_s for kernel in kernels)
        counts.append(factor * sum(one.kernels[kernel].num_calls for kernel in kernels))
        sums.append(sum_s)
        steps.append(sum_s * exposed.get(key[0], 0.0))
    names = tuple(tuple(kernel.name for kernel in kernels) for kernels in members)
    return KernelDifference(
        key[0], key[1], match, (names[0], names[1]), (counts[0], counts[1]), (sums[0], sums[1]), (steps[0], steps[1])
    )


def _without_kernels(first: Traced, other: Traced, step: StepDifference) -> list[KernelDifference]:
    """Return time of parts in which a side has no kernels: idle time, and what the traces do not show."""
    sums = (_sums(first), _sums(other))
    found = []
    for one in step.parts:
        times = (one.first_s, one.other_s)
        bare = [0.0 if sums[side].get(one.part) else times[side] for side in (0, 1)]
        if any(bare):
            nothing: tuple[str, ...] = ()
            match: Match = "no kernel"
            found.append(
                KernelDifference(one.part, "", match, (nothing, nothing), (0.0, 0.0), (0.0, 0.0), (bare[0], bare[1]))
            )
    return found
