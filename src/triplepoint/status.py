"""Outcomes of a run: one enum, with what each means, whether it is a result, and whether it is tried again."""

from enum import StrEnum


class Retry(StrEnum):
    """What follows a launch that ended without a result, up to how often, by a field of `config.site.Gang`."""

    REQUEUE = "submitted again, up to `requeues` times"
    """It failed by no fault of its own."""
    RETRY = "submitted again, up to `retries` times"
    """The failure may not come back."""
    MORE_TIME = "submitted once more with twice the time"
    NEVER = "not submitted again"


class Status(StrEnum):
    """How a run ended; the values stand in manifests and in table `points`.

    Attributes:
        label: A word or two for figures and the report.
        about: Its meaning, for docs and column descriptions.
        retry: What follows a failed launch; None for a result, which is kept.
    """

    label: str
    about: str
    retry: Retry | None

    def __new__(cls, value: str, label: str = "", about: str = "", retry: Retry | None = None) -> "Status":
        """Return a member that equals its text."""
        member = str.__new__(cls, value)
        member._value_, member.label, member.about, member.retry = value, label, about, retry
        return member

    OK = "ok", "ok", "all steps done"
    OOM = "oom", "out of memory", "an allocation failed on the device or the host"
    INVALID = "invalid", "invalid", "the layout cannot exist"
    CRASHED = "crashed", "crashed", "a rank raised or died", Retry.RETRY
    COLLECTIVE = "collective", "collective error", "NCCL or RCCL reported an error", Retry.RETRY
    HUNG = "hung", "hung", "no rank finished a step for `hang_timeout_s`", Retry.RETRY
    TIMEOUT = "timeout", "timed out", "the time limit was reached", Retry.MORE_TIME
    PREEMPTED = "preempted", "preempted", "the scheduler took the nodes away", Retry.REQUEUE
    LOST = "lost", "lost", "a node or the job disappeared without a message", Retry.REQUEUE
    BAD_NODE = "bad_node", "bad node", "a device is broken, missing, or far slower than its peers", Retry.REQUEUE
    CANCELLED = "cancelled", "cancelled", "a person cancelled the job", Retry.NEVER

    @property
    def is_result(self) -> bool:
        """Whether the outcome is kept as a result; the others fail the launch."""
        return self.retry is None


class PredictionStatus(StrEnum):
    """Outcome of a prediction; the values stand in its column `status`."""

    OK = "ok"
    OOM = "oom"
    """Does not fit in memory; the numbers are of a GPU with room for it."""
    UNDECIDED = "undecided"
    """So near the GPU's memory that the prediction does not tell whether it fits; the numbers are of a GPU with room
    for it."""
    INVALID = "invalid"
    """Contradicts itself or cannot run."""
    UNSUPPORTED = "unsupported"
    """Not simulated."""


RESULTS = tuple(status for status in Status if status.is_result)
"""Statuses of table `points`."""
