"""One rank of a gang that trains points one after another, each on its engine.

Of a point with adapters it also writes `weights<N>.json`: of each parameter, a digest of what this rank holds of it
before the first step and after the last.
"""

import hashlib
import importlib
import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from triplepoint.config.point import Point
from triplepoint.launch.engines import RankContext, StepRecorder, get_engine, loop
from triplepoint.launch.engines.data import open_corpus
from triplepoint.launch.engines.loop import enable_flight_recorder


def train_steps(point: Point, trainer: Any, *rest: Any) -> None:
    before = digests(trainer) if point.lora else {}
    loop.train_steps(point, trainer, *rest)
    after = digests(trainer) if point.lora else {}
    changes.clear()
    changes.update({name: (before[name], after[name]) for name in before})


changes: dict[str, tuple[str, str]] = {}


def digests(trainer: Any) -> dict[str, str]:
    chunks = trainer.chunks if hasattr(trainer, "chunks") else [trainer.engine.module]
    return {
        name: digest(parameter)
        for number, chunk in enumerate(chunks)
        for name, parameter in chunk.named_parameters(prefix=f"chunk{number}")
    }


def digest(parameter: nn.Parameter) -> str:
    """Return a digest of the bits; of a parameter that ZeRO-3 has shared out, of this rank's part."""
    held = getattr(parameter, "ds_tensor", parameter).detach().contiguous()
    return hashlib.sha256(held.view(torch.uint8).numpy().tobytes()).hexdigest()


def prepare(folder: Path) -> None:
    """Do, before the ranks are forked, what each would do: read point and corpus, import the engine, for seconds."""
    for content in json.loads((folder / "points.json").read_text()).values():
        point = Point.model_validate(content)
        open_corpus(point)
        trainer = importlib.import_module(f"triplepoint.launch.engines.{point.engine}.trainer")
        trainer.train_steps = train_steps
        # What each rank would import later: the first optimizer does, and DeepSpeed's of ZeRO.
        compiler = "deepspeed.runtime.zero.muon.muon_optimizer" if point.engine == "deepspeed" else "torch._dynamo"
        importlib.import_module(compiler)


def main(folder: Path) -> None:
    enable_flight_recorder()
    dist.init_process_group("gloo")
    for name, content in json.loads((folder / "points.json").read_text()).items():
        context = RankContext.from_environment(folder / name)
        point = Point.model_validate(content)
        facts = get_engine(point.engine).train(point, context, StepRecorder(context))
        (folder / name / f"facts{context.rank}.json").write_text(json.dumps(facts))
        if point.lora:
            (folder / name / f"weights{context.rank}.json").write_text(json.dumps(changes))
    dist.destroy_process_group()
