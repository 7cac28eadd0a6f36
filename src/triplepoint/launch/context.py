"""Context of a rank, and the record of its steps."""

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any


@dataclass(frozen=True)
class RankContext:
    """Where a rank stands in the gang and where it writes."""

    rank: int
    world_size: int
    local_rank: int
    raw: Path
    """Folder of raw artefacts: `traces/`, `logs/`, ..."""

    @classmethod
    def from_environment(cls, raw: Path) -> "RankContext":
        """Return the context in the variables torch.distributed also reads: RANK, WORLD_SIZE, LOCAL_RANK."""
        return cls(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_RANK"]), raw)


@dataclass
class StepRecorder:
    """Appends one line per step to `raw/steps/rank<N>.jsonl`, so a killed rank keeps the steps it finished.

    The file's growth is also what the watchdog takes for progress.
    """

    context: RankContext
    _file: IO[str] = field(init=False, repr=False)
    _row: dict[str, Any] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        path = self.context.raw / "steps" / f"rank{self.context.rank}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w", encoding="utf-8")

    def begin(self, step: int, kind: str) -> None:
        """Note that a step starts now.

        Args:
            step: Step number from 0.
            kind: warmup, measured or profiled.
        """
        self._row = {"rank": self.context.rank, "step": step, "kind": kind, "t_start_ns": time.monotonic_ns()}

    def first_token(self) -> None:
        """Note that the last sequence of a batch has its first token; call it with the device synchronised."""
        self._row["t_first_token_ns"] = time.monotonic_ns()

    def end(self) -> None:
        """Note that the step's work is finished; call it with the device synchronised, before anything else is done."""
        self._row["t_end_ns"] = time.monotonic_ns()

    def write(
        self,
        loss: float | None,
        num_tokens: int,
        peak_memory_bytes: int | None,
        reserved_memory_bytes: int | None = None,
    ) -> None:
        """Write the step's row.

        Args:
            loss: Mean loss of the global batch, None on ranks without the last pipeline stage. Unit: nat.
            num_tokens: Tokens of the global batch; in inference, tokens made.
            peak_memory_bytes: Highest memory of the rank so far, None where unknown.
            reserved_memory_bytes: Highest memory torch held of the GPU so far, None on cpu.
        """
        row = {
            **self._row,
            "loss": loss,
            "num_tokens": num_tokens,
            "peak_memory_bytes": peak_memory_bytes,
            "reserved_memory_bytes": reserved_memory_bytes,
        }
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
