"""The run of one rank on DeepSpeed: process groups, engine, steps, traces."""

import os
import warnings
from typing import Any

import torch.distributed as dist

from triplepoint.config.point import Point
from triplepoint.files import write_json
from triplepoint.launch.context import RankContext, StepRecorder
from triplepoint.launch.engines.data import Batcher, open_corpus
from triplepoint.launch.engines.device import BACKENDS, device_name, open_device
from triplepoint.launch.engines.loop import train_steps
from triplepoint.launch.engines.tracing import Role, Tracer, enable_flight_recorder


def run(point: Point, context: RankContext, recorder: StepRecorder) -> dict[str, Any]:
    """Train `point` in this rank and return facts for the manifest; see the engine's `train`."""
    corpus = open_corpus(point)
    device = open_device(point.cluster.device, context.local_rank)
    is_owner = not dist.is_initialized()
    if is_owner:
        enable_flight_recorder()
        dist.init_process_group(BACKENDS[point.cluster.device])
    _open_deepspeed(point, device.index)
    from triplepoint.launch.engines.deepspeed.trainer import DeepSpeedTrainer

    trainer = DeepSpeedTrainer(point, device)
    dp = point.layout.dp
    batcher = Batcher(corpus, point.num_microbatches, point.micro_batch_size, dp, context.rank % dp)
    tracer = Tracer(point, context, roles(point, trainer.world), device)
    train_steps(point, trainer, batcher, tracer, recorder, device)
    logs = context.raw / "logs"
    logs.mkdir(exist_ok=True)
    write_json(
        logs / f"rank{context.rank}.deepspeed.json", {"config": trainer.config, "messages": trainer.log.messages}
    )
    facts = {**trainer.facts(), "device_name": device_name(device), **corpus.facts()}
    close(trainer.engine, is_owner)
    return facts


def _open_deepspeed(point: Point, index: int | None) -> None:
    """Let DeepSpeed use torch's process groups as they are."""
    if point.cluster.device == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
    # DeepSpeed takes the GPU from here, and a launcher may show each rank its own GPU only.
    os.environ["LOCAL_RANK"] = str(index or 0)
    # DeepSpeed calls what torch has renamed, and torch warns at every call.
    warnings.filterwarnings("ignore", message="`torch.distributed.* is deprecated", category=FutureWarning)
    import deepspeed

    # Its all-reduce through shared memory is compiled at run time, and to see whether it can be, compilers are called.
    deepspeed.ops.__compatible_ops__ = {}
    deepspeed.init_distributed(BACKENDS[point.cluster.device], auto_mpi_discovery=False, verbose=False)


def close(engine: Any, is_owner: bool) -> None:
    """Give up the engine, its hooks and the groups it made, and the world where it was made here."""
    from deepspeed.utils import groups

    dist.barrier()
    engine.destroy()
    made = [group for group in dist.distributed_c10d._world.pg_map if group is not dist.group.WORLD]
    for group in made:
        dist.destroy_process_group(group)
    groups._release_process_group_references()
    if is_owner:
        # Only after a normal end: with a rank gone, this would wait for it.
        dist.destroy_process_group()


def roles(point: Point, world: dist.ProcessGroup) -> dict[str, Role]:
    """Return role and ranks of each process group of this rank, of which DeepSpeed makes many, by torch's names.

    A group is told by its ranks. That of all ranks, torch's own, carries what stages send each other.
    """
    pp, dp = point.layout.pp, point.layout.dp
    found: dict[str, Role] = {}
    for group in dist.distributed_c10d._world.pg_map:
        ranks = dist.get_process_group_ranks(group)
        stages = {rank // dp for rank in ranks}
        role = "dp" if pp == 1 or len(stages) == 1 else "pp"
        found[group.group_name] = ("world" if group is world else role, ranks)
    return found
