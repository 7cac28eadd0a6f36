"""Folding: settings that can do nothing are taken out, so that equal measurements are one point."""

from triplepoint.config.point import BYTES, Layout, Overlap, Point


def fold(point: Point) -> Point:
    """Return the point without the settings that can have no effect in it.

    Inference has no backward pass, so no recomputation, nothing of data parallel ranks to share out or overlap, and a
    pipeline with one way through it.
    Sequence parallelism needs tp above 1, a pipeline schedule needs pp above 1, sharding over data parallel ranks needs
    dp above 1 or says what is offloaded, and each overlap needs the communication it would hide. Layers of stages that
    are all alike say nothing, nor does a number of recomputed layers that is all of them. Random tokens need no
    tokenizer. Last, the point is given the revision of its engine.
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
        "pipeline_layers": () if layout.pp == 1 or _is_even(layout, point.model.num_layers) else layout.pipeline_layers,
    }
    kept_point = {
        "layout": layout.model_copy(update=kept),
        "tokenizer": BYTES if point.corpus == "random" else point.tokenizer,
        "engine_revision": engine_revision(point),
        "recompute_layers": None if _recomputes_alike(point) else point.recompute_layers,
    }
    folded = point.model_copy(update=kept_point)
    return folded.model_copy(update={"overlap": tuple(flag for flag in point.overlap if _can_overlap(flag, folded))})


def engine_revision(point: Point) -> int:
    """Return what `Point.engine_revision` is of a point in this version."""
    return 2 if point.engine == "native" and point.recompute == "selective" else 1


def _is_even(layout: Layout, num_layers: int) -> bool:
    """Return whether the layers of stages are as they would be if nothing were said."""
    stages = layout.pp * layout.vp
    return num_layers % stages == 0 and layout.pipeline_layers == (num_layers // stages,) * stages


def _recomputes_alike(point: Point) -> bool:
    """Return whether the number of recomputed layers changes nothing."""
    return point.recompute != "full" or {point.recompute_layers} == set(
        point.layout.stage_layers(point.model.num_layers)
    )


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
