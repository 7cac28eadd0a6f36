"""A rank's place in the pipeline of inference: activations go on to the next stage, tokens back to the first."""

from collections import deque

import torch
import torch.distributed as dist
from torch import Tensor

from triplepoint.launch.engines.native.mesh import Mesh

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
