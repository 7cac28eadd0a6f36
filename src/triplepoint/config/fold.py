"""Folding: settings that can do nothing are taken out, so that equal measurements are one point."""

from triplepoint.config.point import BYTES, Overlap, Point


def fold(point: Point) -> Point:
    """Return the point without the settings that can have no effect in it.

    Inference has no backward pass, so no recomputation, nothing of data parallel ranks to share out or overlap, and a
    pipeline with one way through it.
    Sequence parallelism needs tp above 1, a pipeline schedule needs pp above 1, sharding over data parallel ranks needs
    dp above 1 or says what is offloaded, and each overlap needs the communication it would hide. Random tokens need no
    tokenizer.
    """
    if point.task == "inference":
        useless = {"sequence_parallel": False, "data_parallel_sharding": "no_shard", "vp": 1, "schedule": None}
        layout = point.layout.model_copy(update=useless)
        point = point.model_copy(update={"layout": layout, "recompute": "none", "overlap": (), "samples": "packed"})
    layout = point.layout
    kept = {
        "sequence_parallel": layout.sequence_parallel and layout.tp > 1,
        "data_parallel_sharding": layout.data_parallel_sharding if layout.dp > 1 or point.offload else "no_shard",
        "schedule": layout.schedule if layout.pp > 1 else None,
    }
    tokenizer = BYTES if point.corpus == "random" else point.tokenizer
    folded = point.model_copy(update={"layout": layout.model_copy(update=kept), "tokenizer": tokenizer})
    return folded.model_copy(update={"overlap": tuple(flag for flag in point.overlap if _can_overlap(flag, folded))})


def _can_overlap(flag: Overlap, point: Point) -> bool:
    layout = point.layout
    # FSDP gathers and reduces beside the computation whatever the flags say, and turns tensor parallel overlap off
    # (NeMo megatron_base_model.py, as shipped with sitar-lab/CharLLM-PPT at dad5f27).
    # DeepSpeed's ZeRO-3 has a switch for each.
    if layout.data_parallel_sharding == "optim_grads_params" and point.engine != "deepspeed":
        return False
    if flag == "tp":
        return layout.tp > 1 and layout.sequence_parallel
    if flag == "param":
        return layout.dp > 1 and layout.data_parallel_sharding != "no_shard"
    return layout.dp > 1
