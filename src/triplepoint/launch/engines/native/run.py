"""The run of one rank: process groups, model, steps, traces."""

from typing import Any

import torch
import torch.distributed as dist

from triplepoint.config.point import Point
from triplepoint.launch.context import RankContext, StepRecorder
from triplepoint.launch.engines.data import Batcher, open_corpus
from triplepoint.launch.engines.device import BACKENDS, device_name, open_device
from triplepoint.launch.engines.loop import train_steps
from triplepoint.launch.engines.native.generate import Generator
from triplepoint.launch.engines.native.mesh import Mesh, build_mesh
from triplepoint.launch.engines.native.trainer import Trainer
from triplepoint.launch.engines.tracing import Tracer, enable_flight_recorder


def run(point: Point, context: RankContext, recorder: StepRecorder) -> dict[str, Any]:
    """Train `point` in this rank and return facts for the manifest; see the engine's `train`.

    A process group that is there already is used and left in place, so that one gang can train several points.
    """
    corpus = open_corpus(point)
    device = open_device(point.cluster.device, context.local_rank)
    torch.manual_seed(point.seed)
    is_owner = not dist.is_initialized()
    if is_owner:
        enable_flight_recorder()
        dist.init_process_group(BACKENDS[point.cluster.device])
    mesh = build_mesh(point.layout, device.type, has_way_back=point.inference is not None)
    trainer: Trainer | Generator
    trainer = Trainer(point, mesh, device) if point.inference is None else Generator(point, mesh, device, recorder)
    layout = point.layout
    dp_rank = mesh.dp.get_local_rank()
    batcher = Batcher(corpus, point.num_microbatches, point.micro_batch_size, layout.dp, dp_rank)
    train_steps(point, trainer, batcher, Tracer(point, context, mesh.roles(), device), recorder, device)
    own = _trained(trainer) if isinstance(trainer, Trainer) else trainer.facts()
    facts = {**own, **_facts(mesh, device), **corpus.facts()}
    if is_owner:
        # Only after a normal end: with a rank gone, this would wait for it.
        dist.destroy_process_group()
    return facts


def _trained(trainer: Trainer) -> dict[str, Any]:
    num_parameters, num_parameters_rank = trainer.count_parameters()
    return {
        "num_parameters": num_parameters,
        "num_parameters_rank": num_parameters_rank,
        "num_trained_parameters": trainer.count_trained(),
        "num_gradient_buckets": trainer.synchroniser.num_buckets,
        "gradient_norm": float(trainer.gradient_norm),
    }


def _facts(mesh: Mesh, device: torch.device) -> dict[str, Any]:
    return {
        "backend": dist.get_backend(mesh.world),
        "device_name": device_name(device),
        "num_threads": torch.get_num_threads(),
    }
