# mypy: disallow-untyped-decorators=False
"""Inference in one rank: prompts are read (prefill), then one token after the other is made (decode).

In a pipeline the sequences of a replica go through the stages in as many groups as there are stages, one after another,
so that every stage has one to work on: activations go on to the next stage, tokens back to the first.
"""

from collections import deque
from dataclasses import dataclass

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

Sent = tuple[dist.Work, Tensor]
"""What to wait for, and the tensor that must live until then."""


class Relay:
    """Hands over between the ranks of one pipeline.

    A rank receives what it is about to work on, and goes on while its last activation is on the way: no more than one
    is, so that a fast stage cannot fill its memory. Tokens wait as long as they must, they are small; the first stage
    takes them in when it needs them.
    """

    def __init__(self, mesh: Mesh, device: torch.device) -> None:
        assert mesh.back is not None
        self._on, self._back, self._device = mesh.pp.get_group(), mesh.back, device
        ranks, place = dist.get_process_group_ranks(self._on), mesh.pp.get_local_rank()
        self._first, self._last = ranks[0], ranks[-1]
        self._previous, self._next = ranks[place - 1], ranks[(place + 1) % len(ranks)]
        self._leaving: list[Sent] = []
        self._returning: list[Sent] = []
        self._awaited: deque[tuple[Tensor, slice]] = deque()
        for group in (self._on, self._back):
            # NCCL makes a group's communicator at its first use, which all its ranks must join.
            dist.all_reduce(torch.zeros(1, device=device), group=group)

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return the next activation of the stage before."""
        x = torch.empty(shape, dtype=dtype, device=self._device)
        dist.recv(x, self._previous, group=self._on)
        return x

    def send(self, x: Tensor) -> None:
        """Send an activation to the next stage, once the one before it is there."""
        _wait_for(self._leaving)
        self._leaving.append(_start(x, self._next, self._on))

    def give_back(self, tokens: Tensor) -> None:
        """Send new tokens from the last stage to the first."""
        self._returning.append(_start(tokens, self._first, self._back))

    def expect(self, tokens: Tensor, rows: slice) -> None:
        """Note on the first stage that these rows of `tokens` will be given back."""
        self._awaited.append((tokens, rows))

    def take_in(self, tokens: Tensor, rows: slice) -> None:
        """Receive on the first stage what is expected of these rows of `tokens`; nothing where they are prompts."""
        while self._awaited and self._awaited[0][0] is tokens and self._awaited[0][1].start < rows.stop:
            _, found = self._awaited.popleft()
            part = torch.empty_like(tokens[found])
            dist.recv(part, self._last, group=self._back)
            tokens[found] = part

    def finish(self) -> None:
        """Wait until all that was sent has arrived."""
        _wait_for(self._leaving)
        _wait_for(self._returning)


def _start(x: Tensor, rank: int, group: dist.ProcessGroup) -> Sent:
    x = x.contiguous()
    work = dist.isend(x, rank, group=group)
    assert work is not None
    return work, x


def _wait_for(sent: list[Sent]) -> None:
    for work, _ in sent:
        work.wait()
    sent.clear()


@dataclass
class Cursor:
    """Which sequences go through the model, and how many tokens of them are in the caches."""

    rows: slice
    start: int = 0


class LayerCache:
    """Keys and values of one layer, of all sequences at their full length."""

    def __init__(self, shape: tuple[int, int, int, int], cursor: Cursor, dtype: torch.dtype, device: torch.device):
        """Allocate.

        Args:
            shape: Sequences, key heads of this rank, tokens, head size.
            cursor: Where to read and write; shared by all layers.
            dtype: Type of the numbers.
            device: Where they live.
        """
        self._keys, self._values = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
        self._cursor = cursor

    @property
    def num_bytes(self) -> int:
        """What it takes."""
        return int(self._keys.nbytes + self._values.nbytes)

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append the keys and values of new tokens and return all so far, new ones included."""
        rows, start = self._cursor.rows, self._cursor.start
        stop = start + keys.shape[2]
        self._keys[rows, :, start:stop], self._values[rows, :, start:stop] = keys, values
        return self._keys[rows, :, :stop], self._values[rows, :, :stop]


class Generator:
    """This rank's stage of the model with the caches of its sequences; it takes the place of a trainer."""

    def __init__(self, point: Point, mesh: Mesh, device: torch.device, recorder: StepRecorder) -> None:
        assert point.inference is not None
        self.point, self.mesh, self.device, self._asked = point, mesh, device, point.inference
        self._recorder = recorder
        self.stages = build_stages(point, mesh, device)
        ((self._number, self.stage),) = self.stages.items()
        self._is_first, self._is_last = self.stage.embedding is not None, self.stage.head is not None
        self._relay = None if point.layout.pp == 1 else Relay(mesh, device)
        self._together = group_size(point.micro_batch_size, point.layout.pp)
        self._cursor = Cursor(slice(0, point.micro_batch_size))
        self._cache_bytes = self._give_caches()

    @property
    def world(self) -> dist.ProcessGroup:
        """All ranks."""
        return self.mesh.world

    @torch.inference_mode()
    def step(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Make text to prompts, the likeliest token each time.

        Returns:
            On ranks of the last stage the text, shape (sequences, output_tokens); on others nothing that is of use.
        """
        start = self._asked.prompt_tokens
        with marker("prefill"):
            made = [self._pass(tokens[:, :start], 0, min(self._asked.prompts_together, self._together))]
            if self._is_last:
                synchronise(self.device)
                self._recorder.first_token()
        with marker("decode"):
            for place in range(start, self._asked.total_tokens - 1):
                made.append(self._pass(made[-1], place, self._together))
            if self._relay is not None:
                self._relay.finish()
        return torch.cat(made, dim=1)

    def global_loss(self, part: Tensor) -> float | None:
        """Return None: nothing is learned."""
        return None

    def facts(self) -> dict[str, int]:
        """Return what the manifest says of this rank."""
        parameters = sum(local(parameter).numel() for parameter in self.stage.parameters())
        return {"num_parameters_rank": parameters, "cache_bytes_rank": self._cache_bytes}

    def _pass(self, tokens: Tensor, start: int, together: int) -> Tensor:
        """Return the next token of every sequence, shape (sequences, 1), groups following one another.

        Ranks of other stages than the last return as many; those of the first are filled in as they come back.

        Args:
            tokens: The newest of every sequence, shape (sequences, tokens).
            start: Position of the first of them.
            together: Sequences in a group.
        """
        made = tokens.new_empty((len(tokens), 1))
        # What is made last is never read.
        is_read = start + tokens.shape[1] < self._asked.total_tokens - 1
        for group, first in enumerate(range(0, len(tokens), together)):
            rows = slice(first, min(first + together, len(tokens)))
            self._cursor.rows, self._cursor.start = rows, start
            x = self._receive(tokens, rows)
            with marker(phase("forward", self._number, group)):
                found = self.stage.advance(x, start)
                if self._is_last:
                    made[rows] = found = self._likeliest(found)
            if self._relay is not None:
                self._hand_over(self._relay, found, made, rows, is_read)
        return made

    def _receive(self, tokens: Tensor, rows: slice) -> Tensor:
        """Return what this stage has to work on: tokens in the first, else the output of the stage before."""
        if self._relay is not None and not self._is_first:
            shape = (rows.stop - rows.start, tokens.shape[1], self.point.model.hidden_size)
            return self._relay.receive(shape, compute_dtype(self.point))
        if self._relay is not None:
            self._relay.take_in(tokens, rows)
        return tokens[rows]

    def _hand_over(self, relay: Relay, found: Tensor, made: Tensor, rows: slice, is_read: bool) -> None:
        if not self._is_last:
            relay.send(found)
        elif is_read:
            relay.give_back(found)
        if self._is_first and is_read:
            relay.expect(made, rows)

    def _likeliest(self, logits: Tensor) -> Tensor:
        """Return the token with the largest logit, shape (sequences, 1); the vocabulary may be split over tp."""
        value, token = logits[..., : self._vocabulary(logits)].max(dim=-1)
        group = self.mesh.tp_group
        if group is None:
            return token
        size = self.mesh.tp.size()
        values, found = ([torch.empty_like(one) for _ in range(size)] for one in (value, token))
        dist.all_gather(values, value.contiguous(), group=group)
        dist.all_gather(found, (token + group.rank() * logits.shape[-1]).contiguous(), group=group)
        best = torch.stack(values).argmax(0, keepdim=True)
        return torch.stack(found).gather(0, best).squeeze(0)

    def _vocabulary(self, logits: Tensor) -> int:
        """Return how many of this rank's logits are of tokens: rows that pad the vocabulary make none."""
        rank = 0 if self.mesh.tp_group is None else int(self.mesh.tp_group.rank())
        width = int(logits.shape[-1])
        return max(1, min(width, self.point.model.vocab_size - rank * width))

    def _give_caches(self) -> int:
        """Give every layer of the stage its cache, and return their bytes."""
        point, model = self.point, self.point.model
        heads = model.num_query_groups // point.layout.tp
        shape = (point.micro_batch_size, heads, self._asked.total_tokens, model.head_size)
        num_bytes = 0
        for module in self.stage.modules():
            if isinstance(module, Attention):
                module.cache = LayerCache(shape, self._cursor, compute_dtype(point), self.device)
                num_bytes += module.cache.num_bytes
        return num_bytes
