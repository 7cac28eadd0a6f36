"""The run of one rank on Megatron-Core, with its schedules, gradient buffers and optimizer."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.optimizer import get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import param_is_not_tensor_parallel_duplicate
from megatron.core.transformer.module import param_is_not_shared
from torch import Tensor

from triplepoint.config.point import Point
from triplepoint.launch.engines import RankContext, StepRecorder
from triplepoint.launch.engines.data import Batcher, open_corpus
from triplepoint.launch.engines.loop import (
    Role,
    Tracer,
    device_name,
    join_group,
    marker,
    open_device,
    train_steps,
)
from triplepoint.launch.engines.megatron.build import build_chunks
from triplepoint.launch.engines.megatron.settings import optimizer_config, parallel_sizes, transformer_config
from triplepoint.launch.engines.megatron.weights import fill

FACTORIES = ("tensor", "zeros", "ones", "empty", "full", "arange", "zeros_like", "ones_like", "empty_like")
_TYPES = {
    torch.float32: "torch.cuda.FloatTensor",
    torch.bfloat16: "torch.cuda.BFloat16Tensor",
    torch.float16: "torch.cuda.HalfTensor",
}
Batch = tuple[Tensor, Tensor]


class MegatronTrainer:
    """This rank's part of the model with its optimizer."""

    def __init__(self, point: Point, device: torch.device) -> None:
        self.point, self.device = point, device
        self.config = transformer_config(point)
        self.chunks = build_chunks(point, self.config, device)
        self._fill()
        self.optimizer = get_megatron_optimizer(optimizer_config(point), self.chunks, use_gloo_process_groups=False)
        self.config.grad_scale_func = self.optimizer.scale_loss
        self._run = get_forward_backward_func()
        length = point.sequence_length
        self._positions = torch.arange(length, device=device)
        # Megatron masks where it is true; with a fused attention it makes its own.
        self._mask = torch.ones(1, 1, length, length, dtype=torch.bool, device=device).triu(1)
        self.gradient_norm = 0.0

    @property
    def world(self) -> dist.ProcessGroup:
        """All ranks."""
        assert dist.group.WORLD is not None
        return dist.group.WORLD

    @property
    def has_loss(self) -> bool:
        """Whether this rank computes the loss: it has the last stage."""
        return bool(parallel_state.is_pipeline_last_stage(ignore_virtual=True))

    def step(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Train on this rank's part of a global batch; see `native.trainer.Trainer.step`."""
        point = self.point
        for chunk in self.chunks:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        batches = [self._batches(tokens, targets) for _ in self.chunks]
        losses = self._run(
            forward_step_func=self._forward,
            data_iterator=batches if len(batches) > 1 else batches[0],
            model=self.chunks,
            num_microbatches=point.num_microbatches,
            seq_length=point.sequence_length,
            micro_batch_size=point.micro_batch_size,
            forward_only=False,
        )
        with marker("optimizer"):
            _, norm, _ = self.optimizer.step()
        self.gradient_norm = float(norm or 0.0)
        return torch.stack(losses).mean() if losses else torch.zeros((), device=self.device)

    def global_loss(self, part: Tensor) -> float | None:
        """Return the mean loss of the global batch, None without the last stage. Unit: nat."""
        if not self.has_loss:
            return None
        group = parallel_state.get_data_parallel_group(with_context_parallel=True)
        total = part.detach().clone()
        dist.all_reduce(total, group=group)
        return float(total / group.size())

    def facts(self) -> dict[str, Any]:
        """Return facts for the manifest."""
        return {
            **self._parameters(),
            "gradient_norm": self.gradient_norm,
            "backend": dist.get_backend(self.world),
            "num_threads": torch.get_num_threads(),
            "layers": type(self.chunks[0].module.decoder.layers[0].self_attention.linear_qkv).__name__,
        }

    def _parameters(self) -> dict[str, int]:
        """Return the number of parameters of the whole model, of those that are trained, and of this rank."""
        held = [(name, parameter) for chunk in self.chunks for name, parameter in chunk.named_parameters()]
        counted = [parameter for name, parameter in held if answers_for(name, parameter)]
        trained = [parameter for parameter in counted if parameter.requires_grad]
        totals = torch.tensor([sum(parameter.numel() for parameter in part) for part in (counted, trained)])
        totals = totals.to(self.device)
        dist.all_reduce(totals)
        return {
            "num_parameters": int(totals[0]),
            "num_parameters_rank": sum(parameter.numel() for _, parameter in held),
            "num_trained_parameters": int(totals[1]),
        }

    def _fill(self) -> None:
        for chunk in self.chunks:
            fill(chunk.module, self.point, self.device)

    def _batches(self, tokens: Tensor, targets: Tensor) -> Iterator[Batch]:
        count = self.point.num_microbatches
        return iter(list(zip(tokens.chunk(count), targets.chunk(count), strict=True)))

    def _forward(self, batches: Iterator[Batch], chunk: Any) -> tuple[Tensor, Any]:
        """Return a chunk's output and what makes its loss, as Megatron's schedules call it."""
        tokens, targets = next(batches)
        with marker("forward"):
            output = chunk(tokens, self._positions.expand_as(tokens), self._mask, labels=targets.clamp(min=0))

        def loss_of(per_token: Tensor) -> tuple[Tensor, Tensor]:
            # A micro-batch is the mean over its tokens, padding left out.
            is_text = targets >= 0
            loss = (per_token.float() * is_text).sum() / is_text.sum().clamp(min=1)
            return loss, loss.detach().clone()

        return output, loss_of


def answers_for(name: str, parameter: Tensor) -> bool:
    """Return whether this rank is the one to count a parameter among those that have the same values of it."""
    if ".experts." in name:
        return bool(parallel_state.get_expert_data_parallel_rank() == 0)
    if parallel_state.get_data_parallel_rank(with_context_parallel=True) > 0:
        return False
    return bool(param_is_not_tensor_parallel_duplicate(parameter) and param_is_not_shared(parameter))


def run(point: Point, context: RankContext, recorder: StepRecorder) -> dict[str, Any]:
    """Train `point` in this rank and return facts for the manifest; see the engine's `train`."""
    corpus = open_corpus(point)
    device = open_device(point.cluster.device, context.local_rank)
    if device.type == "cpu":
        from triplepoint.launch.engines.megatron.trainer import stand_in_for_cuda

        stand_in_for_cuda()
    is_owner = not dist.is_initialized()
    if is_owner:
        join_group(point.cluster.device)
    groups = open_groups(point)
    from triplepoint.launch.engines.megatron.trainer import MegatronTrainer

    trainer = MegatronTrainer(point, device)
    batcher = Batcher(
        corpus, point.num_microbatches, point.micro_batch_size, point.layout.dp, dict(groups)["dp"].rank()
    )
    tracer = Tracer(point, context, _roles(groups), device)
    train_steps(point, trainer, batcher, tracer, recorder, device)
    facts = {**trainer.facts(), "device_name": device_name(device), **corpus.facts()}
    close_groups(is_owner)
    return facts


def open_groups(point: Point) -> list[tuple[str, dist.ProcessGroup]]:
    """Make Megatron's process groups and return those of this rank with their roles."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

    parallel_state.initialize_model_parallel(**parallel_sizes(point), create_gloo_process_groups=False)
    model_parallel_cuda_manual_seed(point.seed)
    groups = [
        ("tp", parallel_state.get_tensor_model_parallel_group()),
        ("pp", parallel_state.get_pipeline_model_parallel_group()),
        ("dp", parallel_state.get_data_parallel_group()),
        # The distributed optimizer has a group of its own, over context parallel ranks too.
        ("dp", parallel_state.get_data_parallel_group(with_context_parallel=True)),
        ("world", dist.group.WORLD),
    ]
    if point.layout.cp > 1:
        groups.append(("cp", parallel_state.get_context_parallel_group()))
    if point.model.moe is not None:
        groups.append(("ep", parallel_state.get_expert_model_parallel_group()))
        groups.append(("tp", parallel_state.get_expert_tensor_parallel_group()))
        groups.append(("edp", parallel_state.get_expert_data_parallel_group()))
    return groups


def close_groups(is_owner: bool) -> None:
    """Give Megatron's groups up, about 35 a point with threads of their own, and the world where it was made here."""
    from megatron.core import parallel_state

    dist.barrier()
    for group in (parallel_state._global_process_group_list or [])[1:]:
        if group in dist.distributed_c10d._world.pg_map:  # a rank is not in each of them
            dist.destroy_process_group(group)
    parallel_state.destroy_model_parallel()
    if is_owner:
        # Only after a normal end: with a rank gone, this would wait for it.
        dist.destroy_process_group()


def _roles(groups: list[tuple[str, dist.ProcessGroup]]) -> dict[str, Role]:
    return {group.group_name: (role, dist.get_process_group_ranks(group)) for role, group in groups}


class NoStream:
    """A stream or an event of a device that does everything in order."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take whatever a stream takes."""

    def __getattr__(self, name: str) -> Callable[..., "NoStream"]:
        """Return a call that does nothing: wait, synchronise, or record and return an event."""
        return lambda *args, **kwargs: self

    def __enter__(self) -> "NoStream":
        """Enter."""
        return self

    def __exit__(self, *args: object) -> None:
        """Leave."""


def stand_in_for_cuda() -> None:
    """Replace what Megatron-Core asks of CUDA, where a rank has no GPU; harmless if called again.

    Megatron names the device in literals (`device="cuda"`), keeps random states of the GPU, checks types as text, and
    waits for streams. Each stand-in says what it replaces; what is computed stays Megatron's.
    """
    if getattr(torch.cuda, "_triplepoint_stands_in", False):
        return
    torch.cuda._triplepoint_stands_in = True
    _devices()
    _random_states()
    _streams()
    _experts()
    _collectives()


def _devices() -> None:
    torch.cuda.current_device = lambda: "cpu"
    for name in FACTORIES:
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    Tensor.cuda = lambda self, *args, **kwargs: self
    plain_type = Tensor.type

    def type_of(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        # The optimizer tells precisions apart by this text.
        return (
            _TYPES.get(self.dtype, plain_type(self)) if not args and not kwargs else plain_type(self, *args, **kwargs)
        )

    Tensor.type = type_of


def _on_cpu(factory: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(factory)
    def make(*args: Any, **kwargs: Any) -> Tensor:
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        return factory(*args, **kwargs)

    return make


def _random_states() -> None:
    from megatron.core.tensor_parallel import random

    torch.cuda.get_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    torch.cuda.set_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)
    torch.cuda.manual_seed = torch.manual_seed
    random._get_cuda_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)


def _streams() -> None:
    torch.cuda.synchronize = lambda *args, **kwargs: None
    for name in ("Stream", "Event"):
        setattr(torch.cuda, name, NoStream)
    torch.cuda.current_stream = lambda *args, **kwargs: NoStream()
    torch.cuda.stream = lambda *args, **kwargs: NoStream()


def _experts() -> None:
    from megatron.core.transformer.moe import moe_utils, token_dispatcher

    # Without Transformer Engine the name is never bound, and yet compared with None. Source: megatron-core 0.16.1.
    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None
    plain = moe_utils.maybe_move_tensor_to_cpu

    def move(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        # Only what comes from a GPU is made numpy, and all_to_all takes split sizes as numbers only.
        moved = plain(tensor, as_numpy, False)
        return moved.numpy() if as_numpy and torch.is_tensor(moved) else moved

    token_dispatcher.maybe_move_tensor_to_cpu = move


def _collectives() -> None:
    """Pad parts of different sizes, which experts split over tensor parallel ranks have: gloo takes equal ones only."""
    plain_gather, plain_scatter = dist.all_gather, dist.reduce_scatter

    def all_gather(outputs: list[Tensor], part: Tensor, group: dist.ProcessGroup | None = None, **kwargs: Any) -> Any:
        if len({len(output) for output in outputs}) < 2:
            return plain_gather(outputs, part, group=group, **kwargs)
        most = max(map(len, outputs))
        padded = [part.new_empty(most, *part.shape[1:]) for _ in outputs]
        plain_gather(padded, _padded(part, most), group=group)
        for output, whole in zip(outputs, padded, strict=True):
            output.copy_(whole[: len(output)])
        return None

    def reduce_scatter(output: Tensor, parts: list[Tensor], *args: Any, **kwargs: Any) -> Any:
        if len({len(part) for part in parts}) < 2:
            return plain_scatter(output, parts, *args, **kwargs)
        most = max(map(len, parts))
        padded = output.new_empty(most, *output.shape[1:])
        plain_scatter(padded, [_padded(part, most) for part in parts], *args, **kwargs)
        output.copy_(padded[: len(output)])
        return None

    dist.all_gather, dist.reduce_scatter = all_gather, reduce_scatter


def _padded(part: Tensor, length: int) -> Tensor:
    return torch.cat([part, part.new_zeros(length - len(part), *part.shape[1:])])
