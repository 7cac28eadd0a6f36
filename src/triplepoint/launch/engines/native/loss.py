# mypy: disallow-subclassing-any=False
"""Cross entropy over a vocabulary that may be split over tensor parallel ranks."""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from triplepoint.launch.engines.data import IGNORED


def mean_cross_entropy(logits: Tensor, target: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Return the mean cross entropy over all tokens but padding, in fp32; 0 where all is padding. Unit: nat.

    Args:
        logits: Shape (batch, sequence, vocabulary), this rank's part of the vocabulary if `group` is given.
        target: Next tokens, `data.IGNORED` for padding; shape (batch, sequence).
        group: Tensor parallel ranks; None if the vocabulary is whole.
    """
    flat, wanted = logits.flatten(0, 1).float(), target.flatten()
    is_text = wanted >= 0
    if group is None:
        per_token = F.cross_entropy(flat, wanted, reduction="none", ignore_index=IGNORED)
    else:
        per_token = SplitCrossEntropy.apply(flat, wanted, group)
    return (per_token * is_text).sum() / is_text.sum().clamp(min=1)


class SplitCrossEntropy(torch.autograd.Function):
    """Cross entropy per token without gathering the logits.

    Source:
        Shoeybi et al. 2019 (Megatron-LM), arXiv:1909.08053, section 3.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Return the loss of each token, shape (tokens,)."""
        size = logits.shape[1]
        peak = logits.amax(1)
        dist.all_reduce(peak, op=dist.ReduceOp.MAX, group=group)
        exponential = (logits - peak.unsqueeze(1)).exp()
        local = target - group.rank() * size
        is_here = (local >= 0) & (local < size)
        column = local.clamp(0, size - 1).unsqueeze(1)
        wanted = logits.gather(1, column).squeeze(1) - peak
        sums = torch.stack((exponential.sum(1), wanted * is_here))
        dist.all_reduce(sums, group=group)
        ctx.save_for_backward(exponential.div_(sums[0].unsqueeze(1)), column, is_here)
        return sums[0].log() - sums[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """Return probability minus one-hot target, times the gradient of the loss."""
        probability, column, is_here = ctx.saved_tensors
        # Out of place: the zero-bubble schedule may walk this node twice.
        one_hot = torch.zeros_like(probability).scatter_(1, column, is_here.unsqueeze(1).to(probability.dtype))
        return (probability - one_hot) * grad.unsqueeze(1), None, None
