"""What training loops write once a step: patterns that mark steps in a log."""

import re
from itertools import pairwise

from triplepoint.errors import UserError

PATTERNS = {
    "megatron": r"iteration\s+(?P<step>\d+)\s*/\s*\d+",
    "deepspeed": r"\bstep=(?P<step>\d+), skipped=\d+",
    "torchtitan": r"\bstep:\s*(?P<step>\d+)\b.*\bloss:",
    "huggingface": r"\d+%\|.*\|\s*(?P<step>\d+)/(?P<total>\d+) \[",
    "lightning": r"Epoch \d+:.*\|\s*(?P<step>\d+)/(?P<total>\d+|\?) \[",
}
"""By framework; `step` is the number of the step that has ended, `total` tells a bar from those of other loops.

Sources: training_log of NVIDIA/Megatron-LM megatron/training/training.py; the report of steps_per_print in
deepspeed/runtime/engine.py; MetricsProcessor.log of pytorch/torchtitan; the bars of tqdm that ProgressCallback of
huggingface/transformers and TQDMProgressBar of Lightning-AI/pytorch-lightning draw.
"""


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def step_pattern(text: str) -> re.Pattern[str]:
    """Return the pattern of a name or a regular expression.

    Raises:
        UserError: If it is neither.
    """
    if re.fullmatch(r"[A-Za-z]+", text) and text.lower() not in PATTERNS:
        raise UserError(
            f"--step-pattern {text!r}: not a framework; expected one of {', '.join(PATTERNS)}, or "
            "a regular expression such as 'iter (?P<step>\\d+)'"
        )
    try:
        return re.compile(PATTERNS.get(text.lower(), text))
    except re.error as error:
        raise UserError(f"--step-pattern {text!r}: not a regular expression: {error}") from None


class LogMarks:
    """Steps by the lines that end them.

    A line each N steps gives N steps of the same length: their mean is right, their spread is that of the means.
    """

    def __init__(self, pattern: re.Pattern[str], rank: int) -> None:
        """Mark steps of a rank by the lines that match."""
        self._pattern, self._rank = pattern, rank
        self._count = self._number = 0
        self._total: str | None = None
        self._last: tuple[int, int] | None = None

    def read(self, line: str, t_ns: int) -> list[dict[str, object]]:
        """Return the steps that a line ends, as rows of table `steps`; none of the first line, whose start is unknown.

        Args:
            line: One line of the log.
            t_ns: When it was written, on the node's monotonic clock. Unit: ns.
        """
        found = self._pattern.search(_COLOUR.sub("", line))
        if found is None:
            return []
        groups = found.groupdict()
        self._total = self._total or groups.get("total")
        if groups.get("total") != self._total:
            return []
        self._number = int(groups["step"]) if groups.get("step") else self._number + 1
        before, self._last = self._last, (self._number, t_ns)
        if before is None or self._number <= before[0]:  # a new epoch, or a bar that was drawn again
            return []
        num = self._number - before[0]
        ends = [before[1] + (t_ns - before[1]) * part // num for part in range(num + 1)]
        rows: list[dict[str, object]] = []
        for begin, end in pairwise(ends):
            row = {"rank": self._rank, "step": self._count, "kind": "measured", "by": "log"}
            rows.append(row | {"t_start_ns": begin, "t_end_ns": end})
            self._count += 1
        return rows
