"""What a step hangs on: the largest part of its time that something could be done about."""

from triplepoint.simulate.costs import Cost
from triplepoint.simulate.job import Job
from triplepoint.simulate.timeline.tasks import Timeline

_WORDS = {
    "gemm": "matrix products",
    "moe": "expert kernels",
    "attention": "attention",
    "tp": "tensor parallel communication",
    "cp": "context parallel communication",
    "ep": "expert all-to-all",
    "etp": "expert tensor parallel communication",
    "dp": "data parallel communication",
    "dp_cp": "data parallel communication",
    "dp_shard": "data parallel communication",
    "dp_copy": "data parallel communication",
    "edp": "data parallel communication of experts",
    "edp_shard": "data parallel communication of experts",
    "edp_copy": "data parallel communication of experts",
    "pp": "pipeline sends",
    "overlapped": "communication that computation does not cover",
    "host": "launching kernels from the host",
    "contention": "computation slowed by communication beside it",
}
_MEMORY_BOUND = ("norm", "elementwise", "embedding", "loss", "optimizer")


def name_bottleneck(job: Job, timeline: Timeline, slowest: Cost) -> str:
    """Return the largest part of the step's time, with its share, such as `matrix products 62 %`.

    Args:
        job: The job.
        timeline: Of its step.
        slowest: What the stage does that the step hangs on, by class of kernel and group of messages.
    """
    parts = {"pipeline bubble": timeline.bubble_fraction * timeline.step_time_s}
    parts["gradient reduction after the backward pass"] = float(
        (timeline.final_sync[:, 1] - timeline.end[:, -1].max(axis=1)).max(initial=0.0)
    )
    for name, time in slowest.by_class.items():
        word = word_for(name)
        parts[word] = parts.get(word, 0.0) + time
    largest = max(parts, key=lambda word: parts[word])
    return f"{largest} {100 * parts[largest] / timeline.step_time_s:.0f} %"


def word_for(name: str) -> str:
    """Return what a class of kernels or a group of messages is called."""
    return "kernels bound by memory" if name in _MEMORY_BOUND else _WORDS.get(name, name)
