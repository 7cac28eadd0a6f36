"""Patterns of the log lines that training frameworks write once per step."""

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
"""Pattern of each framework. `step` is the number of the step that ended; `total` tells progress bars of loops apart.

Sources: training_log of NVIDIA/Megatron-LM megatron/training/training.py; the report of steps_per_print in
deepspeed/runtime/engine.py; MetricsProcessor.log of pytorch/torchtitan; the bars of tqdm that ProgressCallback of
huggingface/transformers and TQDMProgressBar of Lightning-AI/pytorch-lightning draw.
"""


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def step_pattern(text: str) -> re.Pattern[str]:
    """Return the pattern of a framework, or a regular expression as a pattern.

    Raises:
        UserError: If the text is neither.
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
    """Mark steps by the log lines that end them.

    One line every N steps gives N steps of equal length: their mean is right, their spread is that of the means.
    """

    def __init__(self, pattern: re.Pattern[str], rank: int) -> None:
        """Mark steps of a rank by the lines that match a pattern."""
        self._pattern, self._rank = pattern, rank
        self._count = self._number = 0
        self._total: str | None = None
        self._last: tuple[int, int] | None = None

    def read(self, line: str, t_ns: int) -> list[dict[str, object]]:
        """Return the steps that a line ends, as rows of table `steps`; none for the first line: its start is unknown.

        Args:
            line: One line of the log.
            t_ns: Time at which it was written, on the node's monotonic clock. Unit: ns.
        """
        match = self._pattern.search(_COLOUR.sub("", line))
        if match is None:
            return []
        groups = match.groupdict()
        self._total = self._total or groups.get("total")
        if groups.get("total") != self._total:
            return []
        self._number = int(groups["step"]) if groups.get("step") else self._number + 1
        previous, self._last = self._last, (self._number, t_ns)
        if previous is None or self._number <= previous[0]:  # a new epoch, or a progress bar drawn again
            return []
        num = self._number - previous[0]
        ends = [previous[1] + (t_ns - previous[1]) * part // num for part in range(num + 1)]
        rows: list[dict[str, object]] = []
        for begin, end in pairwise(ends):
            row = {"rank": self._rank, "step": self._count, "kind": "measured", "by": "log"}
            rows.append(row | {"t_start_ns": begin, "t_end_ns": end})
            self._count += 1
        return rows
