"""Ranks made up for tests: collectives whose truth is known, and lanes written segment by segment."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from triplepoint.trace import Int64
from triplepoint.trace.rank_results import Collectives, CollectiveSignature, Label, Segments, Step

T0 = 1_700_000_000_000_000_000
US = 1_000
MS = 1_000_000


def numbered(rank: int, signatures: Sequence[CollectiveSignature], start: Int64, end: Int64) -> Collectives:
    """Return collectives with these signatures, numbered within each group, kind and peer."""
    count: Counter[tuple[str | None, str, int | None]] = Counter()
    sequence = []
    for signature in signatures:
        key = (signature.group, signature.kind, signature.peer)
        sequence.append(count[key])
        count[key] += 1
    distinct = list(dict.fromkeys(signatures))
    index = np.array([distinct.index(signature) for signature in signatures], dtype=np.int64)
    return Collectives(rank, distinct, index, np.array(sequence, dtype=np.int64), start, end)


def collectives_of(
    rank: int,
    parts: Sequence[tuple[str, int, int]],
    ranks: tuple[int, ...] = (),
    group: str = "0",
    num_ranks: int | None = None,
) -> Collectives:
    """Return collectives of one group from (kind, start, end)."""
    size = len(ranks) if num_ranks is None else num_ranks
    times = np.array([part[1:] for part in parts], dtype=np.int64).reshape(-1, 2)
    signatures = [CollectiveSignature(group, kind, num_ranks=size, ranks=ranks) for kind, _, _ in parts]
    return numbered(rank, signatures, times[:, 0], times[:, 1])


def together(*several: Collectives) -> Collectives:
    """Return one rank's collectives of several groups as one, by start."""
    start = np.concatenate([own.start for own in several])
    order = np.argsort(start, kind="stable")
    signatures = [own.signatures[index] for own in several for index in own.signature.tolist()]
    end = np.concatenate([own.end for own in several])
    return numbered(several[0].rank, [signatures[position] for position in order.tolist()], start[order], end[order])


def true_ends(rng: np.random.Generator, num: int, gap: int = 2 * MS) -> Int64:
    """Return when collectives really end: gaps of any length around `gap`."""
    return T0 + np.cumsum(rng.exponential(gap, num) + 200 * US).astype(np.int64)


def rank_seeing(
    rng: np.random.Generator,
    rank: int,
    ends: Int64,
    offset: int = 0,
    noise: int = 10 * US,
    ranks: tuple[int, ...] = (),
    group: str = "0",
    kinds: Mapping[int, str] = {},
) -> Collectives:
    """Return the collectives of a rank whose clock is `offset` ahead: starts at any lateness, ends within `noise`."""
    end = ends + offset + rng.normal(0, noise, len(ends)).astype(np.int64)
    start = ends + offset - 60 * US - rng.integers(0, 100 * US, len(ends))
    kind = [kinds.get(position, "all_reduce") for position in range(len(ends))]
    return collectives_of(rank, list(zip(kind, start.tolist(), end.tolist(), strict=True)), ranks, group)


def cut(own: Collectives, first: int, last: int | None = None) -> Collectives:
    """Return what a trace from collective `first` to before `last` shows: numbers count from its own start."""
    part = slice(first, last)
    signatures = [own.signatures[index] for index in own.signature[part].tolist()]
    return numbered(own.rank, signatures, own.start[part], own.end[part])


def lane_of(rank: int, segments: Sequence[tuple[Label, int, int]], steps: Sequence[Step] = ()) -> Segments:
    """Return a lane from (label, start, end); one step over all of it unless told."""
    labels = list(dict.fromkeys(label for label, _, _ in segments))
    times = np.array([segment[1:] for segment in segments], dtype=np.int64).reshape(-1, 2)
    label = np.array([labels.index(segment[0]) for segment in segments], dtype=np.int64)
    whole = [Step(0, int(times[0, 0]), int(times[-1, 1]))] if len(segments) else []
    return Segments(rank, list(steps) or whole, times[:, 0], times[:, 1], label, labels)
