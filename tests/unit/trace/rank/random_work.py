"""Hypothesis strategies for the work of a GPU, and what its time goes into counted instant by instant. Times in ns."""

from collections import defaultdict
from typing import Any, NamedTuple

from hypothesis import strategies as st

from tests.unit.trace.traces import ALL_REDUCE, COPY, FILL, GEMM, SEND_RECV, event, launch, note
from triplepoint.trace.rank_results import Label
from triplepoint.trace.taxonomy import load_scheme

NORM = "void layer_norm_kernel<float>(int)"
CATEGORIES = ("compute", "comm", "memory")
PHASE = {
    "forward stage=0 microbatch=0": "forward",
    "backward stage=0 microbatch=0": "backward",
    "grad_sync": "other",
    "optimizer": "optimizer",
}
BUBBLE, STRAGGLER = "gloo:recv", "gloo:all_reduce"


class Piece(NamedTuple):
    """One piece of device work; `launch` is None where it was not recorded."""

    name: str
    start: int
    length: int
    launch: int | None
    stream: int

    @property
    def end(self) -> int:
        return self.start + self.length

    @property
    def label(self) -> Label:
        kernel = load_scheme().device(self.name)
        return Label(kernel.category, kernel.cls if kernel.category == "compute" else kernel.kind)


class Case(NamedTuple):
    """A trace of a GPU: work, what the device was told it is in, when the host waited, and lengths of steps."""

    work: list[Piece]
    phases: list[tuple[str, int, int]]
    waits: list[tuple[str, int, int]]
    steps: list[int]

    def events(self) -> list[dict[str, Any]]:
        """Return the events of the trace."""
        found = [
            event(name, start / 1000, length / 1000, "gpu_user_annotation", 7) for name, start, length in self.phases
        ]
        found += [note(name, start / 1000, length / 1000, tid=3) for name, start, length in self.waits]
        for number, window in enumerate(self.windows()):
            found.append(note(f"ProfilerStep#{number}", window.start / 1000, len(window) / 1000))
        for correlation, piece in enumerate(self.work, 1):
            cat = "gpu_memcpy" if piece.name == COPY else "gpu_memset" if piece.name == FILL else "kernel"
            args = {"stream": piece.stream, "correlation": correlation}
            found.append(event(piece.name, piece.start / 1000, piece.length / 1000, cat, piece.stream, **args))
            if piece.launch is not None:
                found.append(launch(piece.launch / 1000, correlation))
        return found

    def windows(self) -> list[range]:
        """Return the annotated steps."""
        ends = [sum(self.steps[: number + 1]) for number in range(len(self.steps))]
        return [range(end - length, end) for end, length in zip(ends, self.steps, strict=True)]


_instants, _lengths = st.integers(0, 60), st.integers(0, 25)
_spans = st.tuples(_instants, _lengths)
pieces = st.builds(
    Piece,
    st.sampled_from([GEMM, NORM, ALL_REDUCE, SEND_RECV, COPY, FILL]),
    _instants,
    _lengths,
    st.none() | st.integers(0, 70),
    st.sampled_from([7, 9]),
)
cases = st.builds(
    Case,
    st.lists(pieces, min_size=1, max_size=9),
    st.lists(st.tuples(st.sampled_from(list(PHASE)), _instants, _lengths), max_size=4),
    st.lists(st.tuples(st.sampled_from([BUBBLE, STRAGGLER]), _instants, _lengths), max_size=4),
    st.lists(st.integers(1, 30), max_size=3),
)

Times = dict[Label, list[int]]
"""Busy and exposed time of labels."""


class Counted(NamedTuple):
    """Time by (step, phase), over everything between first and last work, and the label of every instant."""

    accounts: dict[tuple[int, str], Times]
    total: Times
    exposed: dict[int, Label]


def count(case: Case) -> Counted:
    """Return what the time of a case goes into, one instant after the other."""
    first, last = min(one.start for one in case.work), max(one.end for one in case.work)
    windows = case.windows() or [range(first, last)]
    windows[-1] = range(windows[-1].start, max(windows[-1].stop, last))
    accounts: dict[tuple[int, str], Times] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    total: Times = defaultdict(lambda: [0, 0])
    exposed = {}
    for instant in range(min(first, windows[0].start), max(last, windows[-1].stop)):
        running = [piece for piece in case.work if piece.start <= instant < piece.end]
        labels = [piece.label for category in CATEGORIES for piece in sorted_by_start(case, running, category)]
        labels = labels or [Label("idle", reason(case, instant))]
        exposed[instant] = labels[0]
        accounted = [total] if first <= instant < last else []
        accounted += [accounts[n, phase(case, instant)] for n, window in enumerate(windows) if instant in window]
        for times in accounted:
            times[labels[0]][1] += 1
            for label in set(labels):
                times[label][0] += 1
    return Counted(accounts, total, exposed)


def sorted_by_start(case: Case, running: list[Piece], category: str) -> list[Piece]:
    """Return what runs of a category, the earlier begun first."""
    own = [piece for piece in running if piece.label.category == category]
    return sorted(own, key=lambda piece: (piece.start, case.work.index(piece)))


def phase(case: Case, instant: int) -> str:
    """Return the phase of the annotation that began last."""
    active = [
        (start, index) for index, (_, start, length) in enumerate(case.phases) if start <= instant < start + length
    ]
    return PHASE[case.phases[max(active)[1]][0]] if active else "other"


def reason(case: Case, instant: int) -> str:
    """Return why nothing runs at an instant, as `idle` states it."""
    following = [piece for piece in case.work if piece.start > instant]
    awaited = min(following, key=lambda piece: (piece.start, case.work.index(piece)), default=None)
    is_late = awaited is None or (awaited.launch is not None and instant < awaited.launch)
    if is_late:
        waiting = [name for name, start, length in case.waits if start <= instant < start + length]
        return "bubble" if BUBBLE in waiting else "straggler" if STRAGGLER in waiting else "host"
    assert awaited is not None
    return {ALL_REDUCE: "straggler", SEND_RECV: "bubble"}.get(awaited.name, "other")
