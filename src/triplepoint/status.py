"""Outcomes of runs and predictions: meaning, and whether a failed launch is submitted again."""

from enum import StrEnum


class Retry(StrEnum):
    """Whether and how often a failed launch is submitted again; the limits are keys of `config.site.Gang`."""

    REQUEUE = "submitted again, up to `requeues` times"
    """The cause of the failure is outside the run."""
    RETRY = "submitted again, up to `retries` times"
    """The failure may not recur."""
    MORE_TIME = "submitted once more with twice the time"
    NEVER = "not submitted again"


class Status(StrEnum):
    """Outcome of a run; the values are those in manifests and in table `points`.

    Attributes:
        label: A word or two for figures and the report.
        about: Meaning, for documentation and column descriptions.
        retry: Whether a failed launch is submitted again; None for a result, which is kept.
    """

    label: str
    about: str
    retry: Retry | None

    def __new__(cls, value: str, label: str = "", about: str = "", retry: Retry | None = None) -> "Status":
        """Return a member that is equal to its text."""
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
        """Whether the outcome is a result; any other is a failed launch."""
        return self.retry is None


class PredictionStatus(StrEnum):
    """Outcome of a prediction; the values are those of its column `status`."""

    OK = "ok"
    OOM = "oom"
    """It does not fit in memory; times and powers are those of a GPU with enough memory."""
    UNDECIDED = "undecided"
    """The interval of the needed memory contains the capacity; times and powers are those of a GPU with enough memory.
    """
    INVALID = "invalid"
    """The configuration is inconsistent or cannot run."""
    UNSUPPORTED = "unsupported"
    """The simulator does not support it."""


RESULTS = tuple(status for status in Status if status.is_result)
"""Outcomes in table `points`."""
