# mypy: disallow-untyped-decorators=False
"""Inference with the native engine in one rank: prefill of the prompts, then decode token by token.

In a pipeline the sequences are divided into as many groups as there are stages, so that every stage works at the same
time. Activations go to the next stage; new tokens go from the last stage back to the first.
"""

from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from triplepoint.config.point import Point
from triplepoint.config.task import group_size
from triplepoint.launch.engines import StepRecorder
from triplepoint.launch.engines.loop import marker, phase, synchronise
from triplepoint.launch.engines.native.gradients import local
from triplepoint.launch.engines.native.model import Attention
from triplepoint.launch.engines.native.parallel import Mesh, build_stages, compute_dtype

PendingSend = tuple[dist.Work, Tensor]
"""A send under way, and its tensor, which must live until the send is complete."""


class Relay:
    """Sends and receives between the stages of one pipeline.

    A rank has at most one activation under way to the next stage, so that a fast stage does not fill its memory. Tokens
    under way back to the first stage are small and not limited; that stage receives them when it needs them.
    """

    def __init__(self, mesh: Mesh, device: torch.device) -> None:
        assert mesh.back is not None
        self._forward_group, self._back_group, self._device = mesh.pp.get_group(), mesh.back, device
        ranks, stage = dist.get_process_group_ranks(self._forward_group), mesh.pp.get_local_rank()
        self._first, self._last = ranks[0], ranks[-1]
        self._previous, self._next = ranks[stage - 1], ranks[(stage + 1) % len(ranks)]
        self._sent_activations: list[PendingSend] = []
        self._sent_tokens: list[PendingSend] = []
        self._expected: deque[tuple[Tensor, slice]] = deque()
        """On the first stage: rows of token tensors that are still to be received, in the order of arrival."""
        for group in (self._forward_group, self._back_group):
            # NCCL creates a group's communicator at its first use, in which all its ranks must take part.
            dist.all_reduce(torch.zeros(1, device=device), group=group)

    def receive_activation(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return the next activation from the previous stage."""
        x = torch.empty(shape, dtype=dtype, device=self._device)
        dist.recv(x, self._previous, group=self._forward_group)
        return x

    def send_activation(self, x: Tensor) -> None:
        """Start sending an activation to the next stage, once the send before is complete."""
        _wait_for(self._sent_activations)
        self._sent_activations.append(_start_send(x, self._next, self._forward_group))

    def send_tokens(self, tokens: Tensor) -> None:
        """Start sending new tokens from the last stage to the first."""
        self._sent_tokens.append(_start_send(tokens, self._first, self._back_group))

    def expect_tokens(self, tokens: Tensor, rows: slice) -> None:
        """Register on the first stage that the last stage will send these rows of `tokens`."""
        self._expected.append((tokens, rows))

    def receive_tokens(self, tokens: Tensor, rows: slice) -> None:
        """Receive the expected values of these rows of `tokens`, on the first stage. Prompts have none."""
        while self._expected and self._expected[0][0] is tokens and self._expected[0][1].start < rows.stop:
            _, expected_rows = self._expected.popleft()
            part = torch.empty_like(tokens[expected_rows])
            dist.recv(part, self._last, group=self._back_group)
            tokens[expected_rows] = part

    def finish(self) -> None:
        """Wait until all sends are complete."""
        _wait_for(self._sent_activations)
        _wait_for(self._sent_tokens)


def _start_send(x: Tensor, rank: int, group: dist.ProcessGroup) -> PendingSend:
    x = x.contiguous()
    work = dist.isend(x, rank, group=group)
    assert work is not None
    return work, x


def _wait_for(sends: list[PendingSend]) -> None:
    for work, _ in sends:
        work.wait()
    sends.clear()


@dataclass
class Cursor:
    """Position in the KV caches of the forward pass under way; shared by all layers."""

    rows: slice
    """Sequences in the forward pass."""
    start: int = 0
    """Tokens of them that are in the caches already."""


class LayerCache:
    """KV cache of one layer, allocated for all sequences at their full length."""

    def __init__(self, shape: tuple[int, int, int, int], cursor: Cursor, dtype: torch.dtype, device: torch.device):
        """Allocate the cache.

        Args:
            shape: Sequences, key heads of this rank, tokens, head size.
            cursor: Where to read and write; shared by all layers.
            dtype: Type of keys and values.
            device: Device of keys and values.
        """
        self._keys, self._values = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
        self._cursor = cursor

    @property
    def num_bytes(self) -> int:
        """Size of the cache in memory."""
        return int(self._keys.nbytes + self._values.nbytes)

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append the keys and values of new tokens and return those of all tokens so far."""
        rows, start = self._cursor.rows, self._cursor.start
        stop = start + keys.shape[2]
        self._keys[rows, :, start:stop], self._values[rows, :, start:stop] = keys, values
        return self._keys[rows, :, :stop], self._values[rows, :, :stop]


class Generator:
    """This rank's stage of the model with the KV caches of its sequences; a `loop.Trainer` for inference."""

    def __init__(self, point: Point, mesh: Mesh, device: torch.device, recorder: StepRecorder) -> None:
        assert point.inference is not None
        self.point, self.mesh, self.device, self._inference = point, mesh, device, point.inference
        self._recorder = recorder
        self.stages = build_stages(point, mesh, device)
        ((self._stage_number, self.stage),) = self.stages.items()
        self._is_first, self._is_last = self.stage.embedding is not None, self.stage.head is not None
        self._relay = None if point.layout.pp == 1 else Relay(mesh, device)
        self._group_size = group_size(point.micro_batch_size, point.layout.pp)
        self._cursor = Cursor(slice(0, point.micro_batch_size))
        self._cache_bytes = self._allocate_caches()

    @property
    def world(self) -> dist.ProcessGroup:
        """Process group of all ranks."""
        return self.mesh.world

    @torch.inference_mode()
    def step(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Generate text from prompts with greedy decoding.

        Args:
            tokens: Prompts, shape (sequences, at least prompt_tokens).
            targets: Not used.

        Returns:
            On ranks of the last stage the generated tokens, shape (sequences, output_tokens); elsewhere undefined.
        """
        prompt_tokens = self._inference.prompt_tokens
        with marker("prefill"):
            size = min(self._inference.prompts_together, self._group_size)
            generated = [self._next_tokens(tokens[:, :prompt_tokens], 0, size)]
            if self._is_last:
                synchronise(self.device)
                self._recorder.first_token()
        with marker("decode"):
            for position in range(prompt_tokens, self._inference.total_tokens - 1):
                generated.append(self._next_tokens(generated[-1], position, self._group_size))
            if self._relay is not None:
                self._relay.finish()
        return torch.cat(generated, dim=1)

    def global_loss(self, part: Tensor) -> float | None:
        """Return None: inference has no loss."""
        return None

    def facts(self) -> dict[str, Any]:
        """Return facts for the manifest."""
        parameters = sum(local(parameter).numel() for parameter in self.stage.parameters())
        return {"num_parameters_rank": parameters, "cache_bytes_rank": self._cache_bytes}

    def _next_tokens(self, tokens: Tensor, start: int, size: int) -> Tensor:
        """Run the stage on the newest tokens of all sequences, one group after another.

        Args:
            tokens: Newest tokens of every sequence, shape (sequences, tokens).
            start: Position of the first of them.
            size: Sequences in a group.

        Returns:
            The next token of every sequence, shape (sequences, 1). On the first stage of a pipeline the values arrive
            with `Relay.receive_tokens`; on stages in between they are undefined.
        """
        next_tokens = tokens.new_empty((len(tokens), 1))
        # No stage reads the last token of a sequence.
        is_read = start + tokens.shape[1] < self._inference.total_tokens - 1
        for group, first in enumerate(range(0, len(tokens), size)):
            rows = slice(first, min(first + size, len(tokens)))
            self._cursor.rows, self._cursor.start = rows, start
            x = self._receive(tokens, rows)
            with marker(phase("forward", self._stage_number, group)):
                output = self.stage.advance(x, start)
                if self._is_last:
                    next_tokens[rows] = output = self._most_likely_token(output)
            if self._relay is not None:
                self._send(self._relay, output, next_tokens, rows, is_read)
        return next_tokens

    def _receive(self, tokens: Tensor, rows: slice) -> Tensor:
        """Return the input of this stage: tokens in the first, else the output of the previous stage."""
        if self._relay is not None and not self._is_first:
            shape = (rows.stop - rows.start, tokens.shape[1], self.point.model.hidden_size)
            return self._relay.receive_activation(shape, compute_dtype(self.point))
        if self._relay is not None:
            self._relay.receive_tokens(tokens, rows)
        return tokens[rows]

    def _send(self, relay: Relay, output: Tensor, next_tokens: Tensor, rows: slice, is_read: bool) -> None:
        """Send the stage's output onwards, or from the last stage back, and register what the first will receive."""
        if not self._is_last:
            relay.send_activation(output)
        elif is_read:
            relay.send_tokens(output)
        if self._is_first and is_read:
            relay.expect_tokens(next_tokens, rows)

    def _most_likely_token(self, logits: Tensor) -> Tensor:
        """Return the token with the largest logit, shape (sequences, 1); the vocabulary may be split over tp."""
        value, token = logits[..., : self._vocabulary_part(logits)].max(dim=-1)
        group = self.mesh.tp_group
        if group is None:
            return token
        tp = self.mesh.tp.size()
        values, tokens = ([torch.empty_like(like) for _ in range(tp)] for like in (value, token))
        dist.all_gather(values, value.contiguous(), group=group)
        dist.all_gather(tokens, (token + group.rank() * logits.shape[-1]).contiguous(), group=group)
        best_rank = torch.stack(values).argmax(0, keepdim=True)
        return torch.stack(tokens).gather(0, best_rank).squeeze(0)

    def _vocabulary_part(self, logits: Tensor) -> int:
        """Return the number of this rank's logits that belong to tokens, not to padding of the vocabulary."""
        rank = 0 if self.mesh.tp_group is None else int(self.mesh.tp_group.rank())
        width = int(logits.shape[-1])
        return max(1, min(width, self.point.model.vocab_size - rank * width))

    def _allocate_caches(self) -> int:
        """Give every layer of the stage a cache, and return their size in bytes."""
        point, model = self.point, self.point.model
        heads = model.num_query_groups // point.layout.tp
        shape = (point.micro_batch_size, heads, self._inference.total_tokens, model.head_size)
        num_bytes = 0
        for module in self.stage.modules():
            if isinstance(module, Attention):
                module.cache = LayerCache(shape, self._cursor, compute_dtype(point), self.device)
                num_bytes += module.cache.num_bytes
        return num_bytes
