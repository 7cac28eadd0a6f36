"""Where the experts of a token are: on how many ranks and nodes."""

from functools import lru_cache
from math import gcd

from triplepoint.simulate.job import Job


def share_sent_once(job: Job, num_places: int) -> float:
    """Return the share of a token's copies that travel where each place gets one for all its experts.

    Args:
        job: A job of a model with experts.
        num_places: Ranks, or nodes, that the experts are spread over.

    Source:
        deepseek-ai/DeepEP README: tokens cross the network once per node and fan out over NVLink there.
    """
    moe = job.model.moe
    if moe is None:
        return 1.0
    if job.software.routes_in_turn:
        return _places_in_turn(moe.num_experts, moe.top_k, num_places) / moe.top_k
    return num_places * (1 - (1 - 1 / num_places) ** moe.top_k) / moe.top_k


@lru_cache(maxsize=256)
def _places_in_turn(num_experts: int, top_k: int, num_places: int) -> float:
    """Return the mean number of places of `top_k` experts in a row, where one token's row follows that of the last."""
    each = num_experts / num_places
    starts = range(0, num_experts, gcd(num_experts, top_k))
    rows = [{int((start + place) % num_experts / each) for place in range(top_k)} for start in starts]
    return sum(map(len, rows)) / len(rows)
