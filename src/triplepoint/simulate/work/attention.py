"""Attention of one layer: projections, rotary embedding, scores."""

from triplepoint.config.attention import LatentAttention
from triplepoint.simulate.work.cores import Core, core_of
from triplepoint.simulate.work.linear import Linear, linear, norm, residual
from triplepoint.simulate.work.parts import Part, Share, Weights, join, streaming


def attention(share: Share, window: int | None = None) -> tuple[Part, Part, Part]:
    """Return the attention block in three parts: before its core, the core, after it.

    The core alone is what selective recomputation repeats.

    Args:
        share: What the rank has.
        window: Tokens a query sees; None for all.
    """
    model, core = share.job.model, core_of(share, window)
    out = Linear(core.heads * core.value_size, model.hidden_size, "row", model.add_bias, name="linear_proj")
    into = _latent(share, core, model.latent) if model.latent else _plain(share, core)
    return (
        join((norm(share, is_fp8_output=True), *into, _positions(share, core))),
        core.part(),
        join((linear(share, out), residual(share))),
    )


def _plain(share: Share, core: Core) -> tuple[Part, ...]:
    """Return the one projection to queries, keys and values, and their norms."""
    model = share.job.model
    width = (core.heads + 2 * core.groups) * core.size
    into = Linear(model.hidden_size, width, "column", model.add_bias or model.add_qkv_bias, name="linear_qkv")
    return (linear(share, into), *((_head_norms(share, core),) if model.qk_norm else ()))


def _latent(share: Share, core: Core, latent: LatentAttention) -> tuple[Part, ...]:
    """Return the projections of latent attention: down to what tensor parallel ranks all have, a norm, up to heads.

    Source:
        NVIDIA/Megatron-LM megatron/core/transformer/multi_latent_attention.py: the projections down are whole on every
        rank, on its part of the sequence.
    """
    width, rank, nope = share.job.model.hidden_size, latent.q_lora_rank, latent.qk_head_dim
    down = latent.kv_lora_rank + latent.qk_pos_emb_head_dim
    parts = [linear(share, Linear(width, down, "none", name="linear_kv_down_proj"))]
    if rank:
        parts += [
            linear(share, Linear(width, rank, "none", name="linear_q_down_proj", keeps_input=False)),
            norm(share, is_fp8_output=True, width=rank),
        ]
    query = Linear(
        rank or width, core.heads * core.size, "column", name="linear_q_up_proj", keeps_input=rank is not None
    )
    up = core.heads * (nope + latent.v_head_dim)
    return (
        *parts,
        linear(share, query),
        norm(share, is_fp8_output=True, width=latent.kv_lora_rank),
        linear(share, Linear(latent.kv_lora_rank, up, "column", name="linear_kv_up_proj")),
    )


def _head_norms(share: Share, core: Core) -> Part:
    """Return the norms of queries and keys, whose input is kept."""
    one = core.query_bytes + core.pair_bytes / 2
    return Part(
        (streaming("norm", "forward", 2 * one),),
        (streaming("norm", "backward", 3 * one),),
        (),
        one,
        Weights(shared=2.0 * core.size),
    )


def _positions(share: Share, core: Core) -> Part:
    """Return what turns the projection's output into queries, keys and values, rotated where the model does so.

    Rotation reads and writes queries and keys; in backward the gradients of the three are put side by side again.
    """
    all_bytes = core.query_bytes + core.pair_bytes
    turned = core.query_bytes + core.pair_bytes * core.size / (core.size + core.value_size)
    pack = streaming("elementwise", "pack", 2 * all_bytes)
    if share.job.model.position_embedding != "rope":
        return Part((), (pack,))
    rotate = streaming("elementwise", "rope", 2 * turned)
    return Part((rotate,), (rotate, pack))
