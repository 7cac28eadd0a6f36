# mypy: disallow-untyped-decorators=False
"""Inference in one rank: prompts are read (prefill), then one token after the other is made (decode)."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from triplepoint.config.point import Point
from triplepoint.launch.context import StepRecorder
from triplepoint.launch.engines.device import synchronise
from triplepoint.launch.engines.markers import marker
from triplepoint.launch.engines.native.gradients import local
from triplepoint.launch.engines.native.mesh import Mesh
from triplepoint.launch.engines.native.model import Attention, Stage
from triplepoint.launch.engines.native.parallel import build_stages, compute_dtype


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

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append the keys and values of new tokens and return all so far, new ones included."""
        rows, start = self._cursor.rows, self._cursor.start
        stop = start + keys.shape[2]
        self._keys[rows, :, start:stop], self._values[rows, :, start:stop] = keys, values
        return self._keys[rows, :, :stop], self._values[rows, :, :stop]


class Generator:
    """This rank's model with the caches of its sequences; it takes the place of a trainer."""

    def __init__(self, point: Point, mesh: Mesh, device: torch.device, recorder: StepRecorder) -> None:
        assert point.inference is not None
        self.point, self.mesh, self.device, self._asked = point, mesh, device, point.inference
        self._recorder = recorder
        self.stages = build_stages(point, mesh, device)
        (self.stage,) = self.stages.values()
        self._cursor = Cursor(slice(0, point.micro_batch_size))
        self._give_caches()

    @property
    def world(self) -> dist.ProcessGroup:
        """All ranks."""
        return self.mesh.world

    @torch.inference_mode()
    def step(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Make text to prompts and return it, shape (sequences, output_tokens); the likeliest token each time.

        Args:
            tokens: Their first `prompt_tokens` columns are the prompts.
            targets: Passed over.
        """
        prompts = tokens[:, : self._asked.prompt_tokens]
        with marker("prefill"):
            newest = self._prefill(prompts)
            synchronise(self.device)
        self._recorder.first_token()
        made = [newest]
        with marker("decode"):
            for index in range(1, self._asked.output_tokens):
                newest = self._next(newest, slice(0, len(prompts)), self._asked.prompt_tokens + index - 1)
                made.append(newest)
        return torch.cat(made, dim=1)

    def global_loss(self, part: Tensor) -> float | None:
        """Return None: nothing is learned."""
        return None

    def _prefill(self, prompts: Tensor) -> Tensor:
        """Return the first token of every sequence, prompts going through the model in groups."""
        size, parts = self._asked.prompts_together, []
        for first in range(0, len(prompts), size):
            rows = slice(first, min(first + size, len(prompts)))
            parts.append(self._next(prompts[rows], rows, 0))
        return torch.cat(parts)

    def _next(self, tokens: Tensor, rows: slice, start: int) -> Tensor:
        self._cursor.rows, self._cursor.start = rows, start
        return self._likeliest(self.stage.predict_next(tokens, start))

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

    def _give_caches(self) -> None:
        point, model = self.point, self.point.model
        heads = model.num_query_groups // point.layout.tp
        shape = (point.micro_batch_size, heads, point.sequence_length, model.head_size)
        for module in self.stage.modules():
            if isinstance(module, Attention):
                module.cache = LayerCache(shape, self._cursor, compute_dtype(point), self.device)


def count_parameters(stage: Stage) -> int:
    """Return the parameters of a stage on this rank."""
    return sum(local(parameter).numel() for parameter in stage.parameters())
