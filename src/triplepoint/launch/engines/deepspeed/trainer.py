"""Training with DeepSpeed in one rank: its engine, process groups and communication log."""

import contextlib
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed import comm
from deepspeed.comm.comm import comms_logger
from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer
from deepspeed.runtime.utils import clip_grad_norm_
from deepspeed.utils import groups
from torch import Tensor

from triplepoint.config.point import Point
from triplepoint.files import write_json
from triplepoint.launch.engines import MAX_GRADIENT_NORM, RankContext, StepRecorder
from triplepoint.launch.engines.data import Batcher, open_corpus
from triplepoint.launch.engines.deepspeed.model import annotate_phases, build_model, build_optimizer, build_pipeline
from triplepoint.launch.engines.deepspeed.settings import deepspeed_config
from triplepoint.launch.engines.loop import (
    BACKENDS,
    Role,
    Tracer,
    device_name,
    join_group,
    marker,
    open_device,
    phase,
    train_steps,
)


class DeepSpeedTrainer:
    """This rank's part of the model in DeepSpeed's engine, with ZeRO or the pipeline."""

    def __init__(self, point: Point, device: torch.device) -> None:
        self.point, self.config = point, deepspeed_config(point)
        self.world = dist.new_group(group_desc="world")
        """All ranks, for barriers. It is not torch's default group: DeepSpeed uses that, and traces tell them apart."""
        self.is_pipeline = point.layout.pp > 1
        model = build_pipeline(point, device) if self.is_pipeline else build_model(point, device)
        self.engine, *_ = deepspeed.initialize(
            model=model, optimizer=build_optimizer(model), config=self.config, dist_init_required=False
        )
        if isinstance(self.engine.optimizer, FP16_UnfusedOptimizer):
            # This optimizer has already made a step without gradients to allocate its state, which would put Adam's
            # bias correction one step ahead.
            self.engine.optimizer.optimizer.state.clear()
        self.engine.clip_fp32_gradients = self._clip
        self.log = CommunicationLog()
        self._logged_step = point.steps.warmup - 1
        self._num_steps = 0
        self._clipped_norm: float | Tensor = 0.0
        if self.is_pipeline:
            annotate_phases(self.engine)
        else:
            _annotate_method(self.engine, "allreduce_gradients", "grad_sync")

    @property
    def has_loss(self) -> bool:
        """Whether this rank has the last pipeline stage, which computes the loss."""
        return not self.is_pipeline or bool(self.engine.is_last_stage())

    @property
    def gradient_norm(self) -> float:
        """Norm of the last step's gradient, before clipping."""
        norm = self.engine.get_global_grad_norm()
        return float(self._clipped_norm if norm is None else norm)

    def step(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Train on this rank's part of a global batch; see `loop.Trainer.step`."""
        with self.log.on() if self._num_steps == self._logged_step else contextlib.nullcontext():
            losses = self._run_pipeline(tokens, targets) if self.is_pipeline else self._accumulate(tokens, targets)
        self._num_steps += 1
        return losses

    def global_loss(self, part: Tensor) -> float | None:
        """Return the mean loss of the global batch, None without the last stage. Unit: nat."""
        if not self.has_loss:
            return None
        total = part.detach().clone()
        if not self.is_pipeline:  # whose loss is the mean over ranks already
            dist.all_reduce(total, group=self.world)
            total /= self.point.layout.dp
        return float(total)

    def facts(self) -> dict[str, Any]:
        """Return facts for the manifest."""
        zero = self.config["zero_optimization"]
        return {
            **self._parameter_counts(),
            "gradient_norm": self.gradient_norm,
            "backend": dist.get_backend(self.world),
            "num_threads": torch.get_num_threads(),
            "skipped_steps": self.engine.skipped_steps,
            "optimizer": type(self.engine.optimizer).__name__,
            "zero_stage": zero["stage"],
            "overlap_comm": zero["overlap_comm"],
            "num_messages": sum(entry["count"] for entry in self.log.entries),
            "message_bytes": sum(entry["bytes"] * entry["count"] for entry in self.log.entries),
        }

    def _parameter_counts(self) -> dict[str, int]:
        """Return the number of parameters of the whole model, of those that are trained, and of this rank."""
        on_rank = list(self.engine.module.parameters())
        # One rank of each stage counts its parameters: the dp ranks of a stage have consecutive numbers. Tied weights
        # count on the first stage only.
        is_counting = dist.get_rank() % self.point.layout.dp == 0
        counted = [p for p in on_rank if is_counting and not getattr(p, "ds_pipe_replicated", False)]
        trained = [parameter for parameter in counted if parameter.requires_grad]
        totals = torch.tensor([sum(map(_full_size, part)) for part in (counted, trained)], device=self.engine.device)
        dist.all_reduce(totals, group=self.world)
        return {
            "num_parameters": int(totals[0]),
            "num_parameters_rank": sum(map(_size_on_rank, on_rank)),
            "num_trained_parameters": int(totals[1]),
        }

    def _accumulate(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Run all micro-batches without a pipeline and return their mean loss."""
        count, losses = self.point.num_microbatches, []
        for number, (inputs, labels) in enumerate(zip(tokens.chunk(count), targets.chunk(count), strict=True)):
            with marker(phase("forward", 0, number)):
                loss = self.engine(inputs, labels)
            with marker(phase("backward", 0, number)):
                self.engine.backward(loss)
            with marker("optimizer") if number == count - 1 else contextlib.nullcontext():
                self.engine.step()
            losses.append(loss.detach())
        return torch.stack(losses).mean()

    def _run_pipeline(self, tokens: Tensor, targets: Tensor) -> Tensor:
        count = self.point.num_microbatches
        return self.engine.train_batch(iter(list(zip(tokens.chunk(count), targets.chunk(count), strict=True))))

    def _clip(self) -> None:
        """Replace DeepSpeed's own clipping in fp32 without ZeRO by the same, which keeps the norm."""
        engine = self.engine
        self._clipped_norm = clip_grad_norm_(engine.module.parameters(), MAX_GRADIENT_NORM, mpu=engine.mpu)


def _annotate_method(owner: Any, method: str, name: str) -> None:
    """Annotate all calls of a method as spans `name` of the trace."""
    function = getattr(owner, method)

    def annotated(*args: Any, **kwargs: Any) -> Any:
        with marker(name):
            return function(*args, **kwargs)

    setattr(owner, method, annotated)


def _full_size(parameter: Any) -> int:
    """Return the number of elements of a parameter, even if ZeRO-3 has sharded it."""
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def _size_on_rank(parameter: Any) -> int:
    """Return the number of elements of a parameter that this rank keeps."""
    part = getattr(parameter, "ds_tensor", None)
    return int(parameter.numel() if part is None else part.numel())


class CommunicationLog:
    """DeepSpeed's log of the collectives of one step.

    DeepSpeed synchronises with the device around every logged collective. Only the last warm-up step is logged, so that
    neither measured nor profiled steps change.
    """

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        """Operation, bytes of one collective as DeepSpeed counts them, and count; one entry per operation and size."""

    @contextmanager
    def on(self) -> Iterator[None]:
        """Log the collectives of the code inside."""
        comm.reset_log()
        comm.configure(enabled=True, prof_all=True, verbose=False)
        try:
            yield
        finally:
            comm.configure(enabled=False)
        self.entries = [
            {"op": op, "bytes": size, "count": statistics[0]}
            for op, by_size in sorted(comms_logger.comms_dict.items())
            for size, statistics in sorted(by_size.items())
        ]


def run(point: Point, context: RankContext, recorder: StepRecorder) -> dict[str, Any]:
    """Train this rank's part of `point` and return facts for the manifest; see `Engine.train`."""
    corpus = open_corpus(point)
    device = open_device(point.cluster.device, context.local_rank)
    is_owner = not dist.is_initialized()
    if is_owner:
        join_group(point.cluster.device)
    _open_deepspeed(point, device.index)
    trainer = DeepSpeedTrainer(point, device)
    dp = point.layout.dp
    batcher = Batcher(corpus, point.num_microbatches, point.micro_batch_size, dp, context.rank % dp)
    tracer = Tracer(point, context, roles(point, trainer.world), device)
    train_steps(point, trainer, batcher, tracer, recorder, device)
    logs = context.raw / "logs"
    logs.mkdir(exist_ok=True)
    report = {"config": trainer.config, "messages": trainer.log.entries}
    write_json(logs / f"rank{context.rank}.deepspeed.json", report)
    facts = {**trainer.facts(), "device_name": device_name(device), **corpus.facts()}
    close(trainer.engine, is_owner)
    return facts


def _open_deepspeed(point: Point, index: int | None) -> None:
    """Start DeepSpeed on torch's existing process group.

    Args:
        point: The training run.
        index: Number of this rank's GPU, as torch counts them; None on CPU.
    """
    if point.cluster.device == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
    # DeepSpeed reads the number of its GPU from LOCAL_RANK. A launcher may show each rank its own GPU only.
    os.environ["LOCAL_RANK"] = str(index or 0)
    # DeepSpeed uses names that torch has deprecated, and torch warns at every call.
    warnings.filterwarnings("ignore", message="`torch.distributed.* is deprecated", category=FutureWarning)
    # DeepSpeed compiles its all-reduce through shared memory at run time, and calls compilers to see whether it can.
    # With no compatible operations it does neither.
    deepspeed.ops.__compatible_ops__ = {}
    deepspeed.init_distributed(BACKENDS[point.cluster.device], auto_mpi_discovery=False, verbose=False)


def close(engine: Any, is_owner: bool) -> None:
    """Destroy the engine with its hooks and process groups.

    Args:
        engine: DeepSpeed's engine.
        is_owner: Whether the group of all ranks was created for this point, and is destroyed too.
    """
    dist.barrier()
    engine.destroy()
    created = [group for group in dist.distributed_c10d._world.pg_map if group is not dist.group.WORLD]
    for group in created:
        dist.destroy_process_group(group)
    groups._release_process_group_references()
    if is_owner:
        # Only after a normal end: if a rank has failed, this would wait for it forever.
        dist.destroy_process_group()


def roles(point: Point, world: dist.ProcessGroup) -> dict[str, Role]:
    """Return role and ranks of each process group of this rank, by torch's name of the group.

    DeepSpeed creates many groups. Their role follows from their ranks; torch's default group of all ranks carries the
    sends between pipeline stages.
    """
    pp, dp = point.layout.pp, point.layout.dp
    by_name: dict[str, Role] = {}
    for group in dist.distributed_c10d._world.pg_map:
        ranks = dist.get_process_group_ranks(group)
        stages = {rank // dp for rank in ranks}
        role = "dp" if pp == 1 or len(stages) == 1 else "pp"
        by_name[group.group_name] = ("world" if group is world else role, ranks)
    return by_name
