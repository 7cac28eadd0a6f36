"""Training engines: the interface of an engine module, and what all engines share.

Each engine is a package with the members of `Engine`. Importing it is cheap: `LIMITS` are checked in every plan, while
torch, Megatron-Core or DeepSpeed are imported by `train`, in the ranks only.
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
"""Gradients are clipped to this norm. Source: Brown et al. 2020 (GPT-3), appendix B."""

LEARNING_RATE = 3e-4
BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.1
"""Settings of AdamW; only matrices have weight decay. Source: Touvron et al. 2023 (Llama), section 2.2."""

VOCAB_MULTIPLE = 128
"""The vocabulary is padded to a multiple of this, so that it splits over tensor parallel ranks.

Source: Megatron-LM, `--make-vocab-size-divisible-by`, default 128. Megatron-LM multiplies it by tp; here it is the same
for every tp, so that every layout trains the same model.
"""


def padded_vocab_size(vocab_size: int) -> int:
    """Return the number of rows of the embedding: `vocab_size` rounded up to a multiple of `VOCAB_MULTIPLE`."""
    return -(-vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE


def check_features(point: Point) -> str | None:
    """Refuse tasks, precisions and model features that only the simulated engine has."""
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
    """Refuse a padded vocabulary that tp does not divide."""
    model, tp = point.model, point.layout.tp
    rows = padded_vocab_size(model.vocab_size)
    if rows % tp:
        return f"padded vocab_size {rows} of {model.name} does not split over tp: {tp}; choose a tp that divides it"
    return None


def check_expert_biases(point: Point) -> str | None:
    """Refuse experts with biases that are split over tp: every rank would add the whole bias to its partial sum."""
    if point.model.moe is None or not point.model.add_bias or point.layout.expert_tp == 1:
        return None
    instead = "tp: 1" if point.task == "inference" else "etp: 1"
    return f"experts with biases are not split over tp; set add_bias: false, or {instead}"


@dataclass(frozen=True)
class RankContext:
    """Numbers of a rank, and the folder it writes to."""

    rank: int
    world_size: int
    local_rank: int
    raw: Path
    """Folder of the run's raw artefacts: `steps/`, `traces/`, `logs/`, ..."""

    @classmethod
    def from_environment(cls, raw: Path) -> "RankContext":
        """Return the context from the variables that torch.distributed reads: RANK, WORLD_SIZE, LOCAL_RANK."""
        return cls(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_RANK"]), raw)


@dataclass
class StepRecorder:
    """Writes one line per step to `raw/steps/rank<N>.jsonl`, so a killed rank keeps the steps it finished.

    The watchdog of the node reads the growth of this file as progress of the rank.
    """

    context: RankContext
    _file: IO[str] = field(init=False, repr=False)
    _row: dict[str, Any] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        path = self.context.raw / "steps" / f"rank{self.context.rank}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w", encoding="utf-8")

    def begin(self, step: int, kind: str) -> None:
        """Record the start of a step.

        Args:
            step: Step number from 0.
            kind: warmup, measured or profiled.
        """
        self._row = {"rank": self.context.rank, "step": step, "kind": kind, "t_start_ns": time.monotonic_ns()}

    def first_token(self) -> None:
        """Record that every sequence of the batch has its first token. The device must be synchronised."""
        self._row["t_first_token_ns"] = time.monotonic_ns()

    def end(self) -> None:
        """Record the end of the step's work. The device must be synchronised, and nothing else done in between."""
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
            num_tokens: Tokens of the global batch; in inference, generated tokens.
            peak_memory_bytes: Highest memory use of the rank so far, None where unknown.
            reserved_memory_bytes: Most GPU memory that torch has reserved so far, None on cpu.
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
    """Interface of an engine. The module `trainer` of an engine that is a package imports torch."""

    LIMITS: tuple[Rule, ...]
    """Rules for what the engine cannot do, checked by `config.rules.refusal`."""

    def train(self, point: Point, context: RankContext, recorder: StepRecorder) -> dict[str, Any]:
        """Train this rank's part of `point`.

        Args:
            point: The training run; allowed by the rule book and `LIMITS`.
            context: Numbers of this rank. RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are in the environment.
            recorder: Records every step.

        Returns:
            Facts for the manifest, each a plain value.
        """
        ...


def get_engine(name: str) -> Engine:
    """Return the engine called `name`.

    Raises:
        UserError: If this version has no such engine.
    """
    if name not in _MODULES:
        raise UserError(f"engine {name!r} is not in this version of triplepoint; engines here: {', '.join(_MODULES)}")
    return cast(Engine, importlib.import_module(_MODULES[name]))


def import_trainer(name: str) -> None:
    """Import what `Engine.train` would import: torch, and if the engine is a package, its trainer and all it needs."""
    importlib.import_module(f"{__name__}.loop")
    if hasattr(importlib.import_module(_MODULES[name]), "__path__"):
        importlib.import_module(f"{_MODULES[name]}.trainer")
