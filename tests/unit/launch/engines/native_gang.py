"""One rank of a gang that trains points on the native engine: `main` reads `points.json`.

To the engine's facts it adds the text made last, and the gradient norm of the small parameters (gains, biases,
routers), which the norm over all parameters would hide.
"""

import importlib
import json
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from triplepoint.config.point import Point
from triplepoint.launch.engines import RankContext, StepRecorder, native
from triplepoint.launch.engines.data import open_corpus
from triplepoint.launch.engines.loop import enable_flight_recorder
from triplepoint.launch.engines.native import gradients, trainer
from triplepoint.launch.engines.native.generate import Generator
from triplepoint.launch.engines.native.gradients import Placed, local_gradient

SMALL = 200
"""Elements of the largest small parameter: the tiny models' hidden size is 32, and they have 4 experts."""

small_norms: list[float] = []
texts: list[list[list[int]]] = []
generate = Generator.step


def step(self: Generator, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    made = generate(self, tokens, targets)
    texts.append(made.tolist())
    return made


def clip(placed: Sequence[Placed], max_norm: float, world: dist.ProcessGroup) -> torch.Tensor:
    total = torch.zeros(())
    for item in placed:
        if item.parameter.numel() < SMALL:
            # On every rank, since it may be a sum that is still to be made.
            gradient = local_gradient(item.parameter)
            total += gradient.square().sum() * item.is_counted
    dist.all_reduce(total, group=world)
    small_norms.append(float(total.sqrt()))
    return gradients.clip(placed, max_norm, world)


def prepare(folder: Path) -> None:
    """Do, before the ranks are forked, what each would do: read the corpus, import what an optimizer does."""
    for content in json.loads((folder / "points.json").read_text()).values():
        open_corpus(Point.model_validate(content))
    importlib.import_module("torch._dynamo")


def main(folder: Path) -> None:
    trainer.clip = clip  # type: ignore[assignment]
    Generator.step = step  # type: ignore[method-assign]
    enable_flight_recorder()
    dist.init_process_group("gloo")
    for name, content in json.loads((folder / "points.json").read_text()).items():
        context = RankContext.from_environment(folder / name)
        facts = native.train(Point.model_validate(content), context, StepRecorder(context))
        facts["small_gradient_norm"] = small_norms[-1] if small_norms else None
        facts["text"] = texts[-1] if texts else None
        (folder / name / f"facts{context.rank}.json").write_text(json.dumps(facts))
    dist.destroy_process_group()
