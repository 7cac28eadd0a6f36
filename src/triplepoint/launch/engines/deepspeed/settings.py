"""DeepSpeed's configuration for a point."""

from typing import Any

from triplepoint.config.point import Point
from triplepoint.launch.engines import MAX_GRADIENT_NORM

PREFETCH_ELEMENTS = 50_000_000
"""Parameters that ZeRO-3 gathers ahead of their use. Source: DeepSpeed, `stage3_prefetch_bucket_size`, default 5e7."""

ZERO_STAGES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
"""ZeRO stage by `data_parallel_sharding`. Source: Rajbhandari et al. 2020 (ZeRO), arXiv:1910.02054."""


def zero_stage(point: Point) -> int:
    """Return the ZeRO stage of the point, 0 to 3."""
    return ZERO_STAGES[point.layout.data_parallel_sharding]


def deepspeed_config(point: Point) -> dict[str, Any]:
    """Return the configuration, as DeepSpeed reads it from JSON; other options keep DeepSpeed's defaults."""
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": point.micro_batch_size,
        "gradient_accumulation_steps": point.num_microbatches,
        "gradient_clipping": MAX_GRADIENT_NORM,
        "bf16": {"enabled": point.precision == "bf16"},
        "fp16": {"enabled": point.precision == "fp16"},
        "zero_optimization": _zero_options(point),
        # The optimizer is torch's. DeepSpeed's own are compiled at first use, which needs a compiler on each node.
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        # This timer synchronises with the device in every micro-batch.
        "timers": {"throughput": {"enabled": False}},
    }
    if point.layout.pp > 1:
        config["pipeline"] = {"activation_checkpoint_interval": int(point.recompute == "full")}
    return config


def _zero_options(point: Point) -> dict[str, Any]:
    stage = zero_stage(point)
    zero: dict[str, Any] = {"stage": stage, "contiguous_gradients": True, "overlap_comm": "grad" in point.overlap}
    if stage == 3:
        zero["stage3_prefetch_bucket_size"] = PREFETCH_ELEMENTS if "param" in point.overlap else 0
    # Only copies to a GPU need page-locked memory.
    offload_target = {"device": "cpu", "pin_memory": point.cluster.device != "cpu"}
    if "optim" in point.offload:
        zero["offload_optimizer"] = offload_target
    if "params" in point.offload:
        zero["offload_param"] = offload_target
    return zero
