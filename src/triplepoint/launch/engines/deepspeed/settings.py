"""A point in DeepSpeed's own words: its JSON configuration, with the names of its options."""

from typing import Any

import torch

from triplepoint.config.point import Point
from triplepoint.launch.engines.deepspeed import zero_stage
from triplepoint.launch.engines.optimizer import MAX_GRADIENT_NORM

PREFETCH_ELEMENTS = 50_000_000
"""Parameters that ZeRO-3 gathers ahead of their use. Source: DeepSpeed, `stage3_prefetch_bucket_size`, default 5e7."""

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def dtype_of(point: Point) -> torch.dtype:
    """Return the type of parameters and activations."""
    return _DTYPES[point.precision]


def deepspeed_config(point: Point) -> dict[str, Any]:
    """Return the configuration; what it does not name is as DeepSpeed has it by default."""
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": point.micro_batch_size,
        "gradient_accumulation_steps": point.num_microbatches,
        "gradient_clipping": MAX_GRADIENT_NORM,
        "bf16": {"enabled": point.precision == "bf16"},
        "fp16": {"enabled": point.precision == "fp16"},
        "zero_optimization": _zero(point),
        # The optimizer is torch's: DeepSpeed's own ones are compiled on first use, which takes a compiler on each node.
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        # It waits for the device in every micro-batch.
        "timers": {"throughput": {"enabled": False}},
    }
    if point.layout.pp > 1:
        config["pipeline"] = {"activation_checkpoint_interval": int(point.recompute == "full")}
    return config


def _zero(point: Point) -> dict[str, Any]:
    stage = zero_stage(point)
    zero: dict[str, Any] = {"stage": stage, "contiguous_gradients": True, "overlap_comm": "grad" in point.overlap}
    if stage == 3:
        zero["stage3_prefetch_bucket_size"] = PREFETCH_ELEMENTS if "param" in point.overlap else 0
    # Page-locked memory is for copies to a GPU.
    held = {"device": "cpu", "pin_memory": point.cluster.device != "cpu"}
    if "optim" in point.offload:
        zero["offload_optimizer"] = held
    if "params" in point.offload:
        zero["offload_param"] = held
    return zero
