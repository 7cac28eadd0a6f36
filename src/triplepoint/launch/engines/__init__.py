"""The engines that train: one module each, found by name, imported only in the ranks; and what they share.

Shared are the context of a rank, the record of its steps, AdamW's settings, rows of the embedding, and limits.

An engine module has
    LIMITS: what the engine cannot do, as rules that `config.rules.refusal` asks. Importing it imports nothing heavy.
    train(point, context, recorder) -> dict: trains in one rank, and returns facts for the manifest.
"""

import importlib
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol, cast

from triplepoint.config.point import Point
from triplepoint.config.rules import Rule
from triplepoint.errors import UserError

MAX_GRADIENT_NORM = 1.0
"""Source: Brown et al. 2020 (GPT-3), appendix B."""

LEARNING_RATE = 3e-4
BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.1
"""Source of all three: Touvron et al. 2023 (Llama), section 2.2; weight decay on matrices only."""

VOCAB_MULTIPLE = 128
"""The vocabulary is padded to a multiple of this, so that it splits over tensor parallel ranks.

Source: Megatron-LM, `--make-vocab-size-divisible-by`, default 128. Unlike there it does not grow with tp, so that
every layout trains the same model.
"""


def padded_vocab_size(vocab_size: int) -> int:
    """Return the rows of the embedding: `vocab_size` rounded up to a multiple of `VOCAB_MULTIPLE`."""
    return -(-vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE


def check_features(point: Point) -> str | None:
    """The point asks only for what the launched engines have."""
    if point.engine != "native" and point.task == "inference":
        return f"the {point.engine} engine has no task: inference; set engine: native or simulated"
    if point.precision == "nvfp4":
        return f"the {point.engine} engine has no precision: nvfp4; set precision: bf16 or engine: simulated"
    if point.model.position_embedding == "alibi":
        return f"the {point.engine} engine has no ALiBi ({point.model.name}); choose another model or engine: simulated"
    if 0 in point.layout.pipeline_layers and point.engine != "megatron":
        return f"the {point.engine} engine has no pipeline stages without layers; change pipeline_layers"
    if 0 in point.layout.pipeline_layers[1:-1]:
        return "Megatron-Core has layers on all but the first and last pipeline stage; change pipeline_layers"
    sections = [section for section in (point.model, point.model.moe) if section]
    for section in sections:
        for key in sorted(section.features):
            if getattr(section, key) != type(section).model_fields[key].default:
                return (
                    f"the {point.engine} engine has no {key} ({point.model.name}); choose another model or "
                    "engine: simulated"
                )
    return None


def check_vocabulary(point: Point) -> str | None:
    """Rows of the embedding split over tp."""
    model, tp = point.model, point.layout.tp
    rows = padded_vocab_size(model.vocab_size)
    if rows % tp:
        return f"padded vocab_size {rows} of {model.name} does not split over tp: {tp}; choose a tp that divides it"
    return None


def check_expert_biases(point: Point) -> str | None:
    """Experts that are split over tp have no biases: each part would add its own."""
    if point.model.moe is None or not point.model.add_bias or point.layout.expert_tp == 1:
        return None
    instead = "tp: 1" if point.task == "inference" else "etp: 1"
    return f"experts with biases are not split over tp; set add_bias: false, or {instead}"


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


_MODULES = {name: f"triplepoint.launch.engines.{name}" for name in ("native", "megatron", "deepspeed")}


class Engine(Protocol):
    """Interface of an engine module."""

    LIMITS: tuple[Rule, ...]
    """What the engine cannot do."""

    def train(self, point: Point, context: RankContext, recorder: StepRecorder) -> dict[str, Any]:
        """Train `point` in this rank and return facts for the manifest."""
        ...


def get_engine(name: str) -> Engine:
    """Return the engine called `name`.

    Raises:
        UserError: If this version has no such engine.
    """
    if name not in _MODULES:
        raise UserError(f"engine {name!r} is not in this version of triplepoint; engines here: {', '.join(_MODULES)}")
    return cast(Engine, importlib.import_module(_MODULES[name]))
