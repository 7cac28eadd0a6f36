"""The Megatron engine: Megatron-Core's layers, schedules, gradient buffers and optimizer.

On a GPU it uses the kernels of Transformer Engine, if that is installed, else Megatron-Core's own modules. On a CPU the
same code runs over gloo, with CUDA calls replaced by `cuda_stand_ins.py`.
"""

import importlib.util
from typing import Any

from triplepoint.config.point import Point
from triplepoint.config.rules import Rule
from triplepoint.errors import UserError
from triplepoint.launch.engines import RankContext, StepRecorder, check_expert_biases, check_features, check_vocabulary


def train(point: Point, context: RankContext, recorder: StepRecorder) -> dict[str, Any]:
    """Train this rank's part of `point`; see `Engine.train`.

    Raises:
        UserError: If Megatron-Core is not installed here.
    """
    if not is_installed():
        raise UserError(
            "engine megatron needs megatron-core, which is not installed; pip install megatron-core, "
            "or set engine: native"
        )
    from triplepoint.launch.engines.megatron.trainer import run

    return run(point, context, recorder)


def is_installed() -> bool:
    """Return whether Megatron-Core can be imported here."""
    try:
        return importlib.util.find_spec("megatron.core") is not None
    except ModuleNotFoundError:
        return False


def _check_overlap(point: Point) -> str | None:
    if "param" in point.overlap and (point.layout.data_parallel_sharding == "no_shard" or point.layout.dp == 1):
        return "overlap param gathers what the distributed optimizer has sharded; set data_parallel_sharding: optim"
    return None


def _check_pipeline(point: Point) -> str | None:
    layout = point.layout
    if layout.pp > 1 and layout.schedule not in ("1f1b", "interleaved_1f1b"):
        return f"Megatron-Core has no schedule {layout.schedule}; set schedule: 1f1b, or engine: native"
    return None


def _check_experts(point: Point) -> str | None:
    layout = point.layout
    if layout.etp is not None and layout.ep == 1:
        # Its layers mark parameters as experts' only with ep > 1.
        # Source: megatron-core 0.16.1, tensor_parallel/layers.py.
        return (
            f"Megatron-Core adds up gradients of experts over other ranks than tp's only with ep above 1; set ep: 2 or "
            f"more, or etp: {layout.tp}"
        )
    if point.model.moe is not None and layout.tp > 1 and not layout.sequence_parallel:
        return "Megatron-Core trains experts with tensor parallelism only if sequences are split; set sequence_parallel"
    return None


def _check_lora(point: Point) -> str | None:
    if point.lora is None:
        return None
    if point.layout.dp > 1 and point.layout.data_parallel_sharding in ("optim_grads", "optim_grads_params"):
        return (
            "Megatron-FSDP keeps no frozen parameters apart from trained ones here; set data_parallel_sharding: optim, "
            "or engine: native or deepspeed"
        )
    if "tp" in point.overlap:
        return "overlap tp is not set up for frozen weights; remove tp from overlap"
    return None


def _check_cpu(point: Point) -> str | None:
    if point.cluster.device != "cpu":
        return None
    if point.precision in ("fp8", "fp16"):
        return f"precision {point.precision} needs a GPU; set precision: bf16 or fp32"
    if point.layout.cp > 1:
        return f"context parallelism needs Transformer Engine and so a GPU (cp: {point.layout.cp}); set cp: 1"
    if point.layout.dp > 1 and point.layout.data_parallel_sharding in ("optim_grads", "optim_grads_params"):
        return (
            f"data_parallel_sharding {point.layout.data_parallel_sharding} is Megatron-FSDP's, which needs a GPU; set "
            "data_parallel_sharding: optim, or engine: native"
        )
    if "tp" in point.overlap:
        return "overlap tp needs Transformer Engine's user buffers and so a GPU; remove tp from overlap"
    return None


LIMITS: tuple[Rule, ...] = (
    check_features,
    _check_overlap,
    check_vocabulary,
    _check_pipeline,
    check_expert_biases,
    _check_experts,
    _check_lora,
    _check_cpu,
)
