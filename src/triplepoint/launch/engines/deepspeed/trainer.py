"""The run of one rank on DeepSpeed: process groups, engine, training steps, traces."""

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
    train_steps,
)


class DeepSpeedTrainer:
    """This rank's part of the model in DeepSpeed's engine: ZeRO, or the pipeline."""

    def __init__(self, point: Point, device: torch.device) -> None:
        self.point, self.config = point, deepspeed_config(point)
        self.world = dist.new_group(group_desc="world")
        """All ranks, for barriers: DeepSpeed sends on torch's own group of all, and a trace is to tell them apart."""
        self.is_pipeline = point.layout.pp > 1
        model = build_pipeline(point, device) if self.is_pipeline else build_model(point, device)
        self.engine, *_ = deepspeed.initialize(
            model=model, optimizer=build_optimizer(model), config=self.config, dist_init_required=False
        )
        if isinstance(self.engine.optimizer, FP16_UnfusedOptimizer):
            # It has made a step with no gradient to allocate its state, and would be one step ahead of Adam's start.
            self.engine.optimizer.optimizer.state.clear()
        self.engine.clip_fp32_gradients = self._clip
        self.log = MessageLog()
        self._logged_step = point.steps.warmup - 1
        self._num_steps = 0
        self._norm: float | Tensor = 0.0
        if self.is_pipeline:
            annotate_phases(self.engine)
        else:
            annotate(self.engine, "allreduce_gradients", "grad_sync")

    @property
    def has_loss(self) -> bool:
        """Whether this rank computes the loss: it has the last stage."""
        return not self.is_pipeline or bool(self.engine.is_last_stage())

    @property
    def gradient_norm(self) -> float:
        """Norm of the last step's gradient, before clipping."""
        norm = self.engine.get_global_grad_norm()
        return float(self._norm if norm is None else norm)

    def step(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Train on this rank's part of a global batch; see `native.trainer.Trainer.step`."""
        with self.log.on() if self._num_steps == self._logged_step else contextlib.nullcontext():
            losses = self._run_pipeline(tokens, targets) if self.is_pipeline else self._accumulate(tokens, targets)
        self._num_steps += 1
        return losses

    def global_loss(self, part: Tensor) -> float | None:
        """Return the mean loss of the global batch, None without the last stage. Unit: nat."""
        if not self.has_loss:
            return None
        total = part.detach().clone()
        if not self.is_pipeline:  # the pipeline has the mean already
            dist.all_reduce(total, group=self.world)
            total /= self.point.layout.dp
        return float(total)

    def facts(self) -> dict[str, Any]:
        """Return facts for the manifest."""
        zero = self.config["zero_optimization"]
        return {
            **self._parameters(),
            "gradient_norm": self.gradient_norm,
            "backend": dist.get_backend(self.world),
            "num_threads": torch.get_num_threads(),
            "skipped_steps": self.engine.skipped_steps,
            "optimizer": type(self.engine.optimizer).__name__,
            "zero_stage": zero["stage"],
            "overlap_comm": zero["overlap_comm"],
            "num_messages": sum(message["count"] for message in self.log.messages),
            "message_bytes": sum(message["bytes"] * message["count"] for message in self.log.messages),
        }

    def _parameters(self) -> dict[str, int]:
        """Return the number of parameters of the whole model, of those that are trained, and of this rank."""
        held = list(self.engine.module.parameters())
        # Ranks of a stage follow each other, and one of them counts; of tied weights only the first stage's count.
        is_counting = dist.get_rank() % self.point.layout.dp == 0
        counted = [p for p in held if is_counting and not getattr(p, "ds_pipe_replicated", False)]
        trained = [parameter for parameter in counted if parameter.requires_grad]
        totals = torch.tensor([sum(map(_whole, part)) for part in (counted, trained)], device=self.engine.device)
        dist.all_reduce(totals, group=self.world)
        return {
            "num_parameters": int(totals[0]),
            "num_parameters_rank": sum(map(_held, held)),
            "num_trained_parameters": int(totals[1]),
        }

    def _accumulate(self, tokens: Tensor, targets: Tensor) -> Tensor:
        count, losses = self.point.num_microbatches, []
        for number, (inputs, wanted) in enumerate(zip(tokens.chunk(count), targets.chunk(count), strict=True)):
            with marker(f"forward stage=0 microbatch={number}"):
                loss = self.engine(inputs, wanted)
            with marker(f"backward stage=0 microbatch={number}"):
                self.engine.backward(loss)
            with marker("optimizer") if number == count - 1 else contextlib.nullcontext():
                self.engine.step()
            losses.append(loss.detach())
        return torch.stack(losses).mean()

    def _run_pipeline(self, tokens: Tensor, targets: Tensor) -> Tensor:
        count = self.point.num_microbatches
        return self.engine.train_batch(iter(list(zip(tokens.chunk(count), targets.chunk(count), strict=True))))

    def _clip(self) -> None:
        """Clip as DeepSpeed does without ZeRO and in fp32, and keep the norm, which it throws away."""
        engine = self.engine
        self._norm = clip_grad_norm_(engine.module.parameters(), MAX_GRADIENT_NORM, mpu=engine.mpu)


def annotate(owner: Any, method: str, name: str) -> None:
    """Name a method's time in the trace."""
    function = getattr(owner, method)

    def annotated(*args: Any, **kwargs: Any) -> Any:
        with marker(name):
            return function(*args, **kwargs)

    setattr(owner, method, annotated)


def _whole(parameter: Any) -> int:
    """Return the elements of a parameter, also of one that ZeRO-3 has sharded."""
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def _held(parameter: Any) -> int:
    """Return the elements of a parameter that this rank keeps."""
    part = getattr(parameter, "ds_tensor", None)
    return int(parameter.numel() if part is None else part.numel())


class MessageLog:
    """DeepSpeed's log of collectives in one step.

    It waits for the device around every collective, so it is on in the last warm-up step only: neither what is timed
    nor what is traced is changed by it.
    """

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        """Operation, bytes of one collective as DeepSpeed counts them, and their number; by operation and size."""

    @contextmanager
    def on(self) -> Iterator[None]:
        """Log what is sent inside."""
        comm.reset_log()
        comm.configure(enabled=True, prof_all=True, verbose=False)
        try:
            yield
        finally:
            comm.configure(enabled=False)
        self.messages = [
            {"op": op, "bytes": size, "count": entry[0]}
            for op, sizes in sorted(comms_logger.comms_dict.items())
            for size, entry in sorted(sizes.items())
        ]


def run(point: Point, context: RankContext, recorder: StepRecorder) -> dict[str, Any]:
    """Train `point` in this rank and return facts for the manifest; see the engine's `train`."""
    corpus = open_corpus(point)
    device = open_device(point.cluster.device, context.local_rank)
    is_owner = not dist.is_initialized()
    if is_owner:
        join_group(point.cluster.device)
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
