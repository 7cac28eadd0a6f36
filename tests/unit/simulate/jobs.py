"""Small jobs whose work can be counted by hand."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from triplepoint.config.base import Quantity
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.gpu import GemmKernels, GpuConfig, UsualNetwork
from triplepoint.config.model import MixtureOfExperts, ModelConfig
from triplepoint.config.point import Layout
from triplepoint.simulate.collectives.links import load_link
from triplepoint.simulate.fabric import Fabric, Level, Network, network_levels, node_levels
from triplepoint.simulate.job import Job
from triplepoint.simulate.operations import Communication, Kernel, Operation, StageWork
from triplepoint.simulate.stacks import find_stack

SOURCE = "made up for tests"
FABRIC = Fabric(
    (Level("nvlink", 8, 450e9, 1e-6, counters="nvlink"), Level("rail", 1 << 20, 50e9, 5e-6, is_network=True))
)


def gpu(memory_gib: float = 80) -> GpuConfig:
    def quantity(value: float, unit: str) -> Quantity:
        return Quantity(value=value, unit=unit, source=SOURCE)

    return GpuConfig(
        name="h100",
        vendor="nvidia",
        architecture="Hopper",
        product="made up",
        chip="h100",
        form_factor="sxm",
        memory_type="hbm3",
        chassis="hgx-8",
        scale_up_link="nvlink4",
        usual_network=UsualNetwork(gpus_per_node=8, node_bandwidth=quantity(400e9, "byte/s")),
        gemm_kernels=GemmKernels(bf16="nvjet_sm90_tst", fp8="nvjet_sm90_qqtst"),
        peak_bf16_flops=quantity(1e15, "FLOP/s"),
        peak_fp32_flops=quantity(6e13, "FLOP/s"),
        peak_fp8_flops=quantity(2e15, "FLOP/s"),
        memory_capacity=quantity(memory_gib * 2**30, "byte"),
        memory_bandwidth=quantity(3e12, "byte/s"),
        package_power_limit=quantity(700, "W"),
        idle_power=quantity(70, "W"),
        max_sm_clock=quantity(1980, "MHz"),
        scale_up_bandwidth=quantity(450e9, "byte/s"),
    )


def gpt(**changes: Any) -> ModelConfig:
    """A GPT whose vocabulary needs no padding up to tp 8."""
    settings: dict[str, Any] = {
        "name": "gpt",
        "source": SOURCE,
        "num_layers": 8,
        "hidden_size": 512,
        "ffn_hidden_size": 2048,
        "num_attention_heads": 8,
        "num_query_groups": 8,
        "vocab_size": 4096,
        "sequence_length": 1024,
        "activation": "gelu",
        "normalization": "layernorm",
        "position_embedding": "learned",
        "add_bias": True,
        "tie_embeddings": True,
    }
    return ModelConfig.model_validate(settings | changes)


def llama(**changes: Any) -> ModelConfig:
    settings: dict[str, Any] = {
        "name": "llama",
        "ffn_hidden_size": 1536,
        "activation": "swiglu",
        "normalization": "rmsnorm",
        "position_embedding": "rope",
        "add_bias": False,
        "tie_embeddings": False,
    }
    return gpt(**(settings | changes))


LLAMA_LAYER = 4 * 512 * 512 + 3 * 512 * 1536 + 2 * 512
"""Parameters of one layer of `llama()`: attention, feed-forward, two norms."""


def mixtral(capacity_factor: float | None = 1.0, **changes: Any) -> ModelConfig:
    moe = MixtureOfExperts(num_experts=8, top_k=2, capacity_factor=capacity_factor)
    return llama(**({"name": "mixtral", "moe": moe} | changes))


def job(model: ModelConfig | None = None, **changes: Any) -> Job:
    """A job; keys of `Layout` are put into its layout."""
    layout = {key: changes.pop(key) for key in list(changes) if key in Layout.model_fields}
    settings: dict[str, Any] = {
        "model": model or gpt(),
        "layout": Layout(**layout),
        "micro_batch_size": 2,
        "global_batch_size": 64,
        "sequence_length": 1024,
        "gpu": gpu(),
        "fabric": FABRIC,
    }
    software = find_stack(changes.get("stack", ""), Path("config"))
    return Job(**({"software": software} | settings | changes))


def operations(stages: Iterable[StageWork], *passes: str) -> list[Operation]:
    """All operations of one micro-batch, of the passes named or of all."""
    names = passes or ("forward", "backward_input", "backward_weight")
    return [op for stage in stages for chunk in stage.chunks for name in names for op in getattr(chunk, name)]


def flops(found: Iterable[Operation], *classes: str) -> float:
    kernels = (op for op in found if isinstance(op, Kernel) and (not classes or op.cls in classes))
    return sum(kernel.flops * kernel.count for kernel in kernels)


def communications(found: Iterable[Operation], kind: str, group: str) -> list[Communication]:
    return [op for op in found if isinstance(op, Communication) and (op.kind, op.group) == (kind, group)]


def communication_bytes(found: Iterable[Operation], kind: str, group: str) -> float:
    return sum(op.num_bytes * op.count for op in communications(found, kind, group))


def fabric_from(
    gpu_name: str,
    gpus_per_node: int,
    nic_bytes_per_s_per_node: float,
    config: Path,
    num_gpus: int = 1 << 20,
    network: Network | None = None,
) -> Fabric:
    """Return a fabric from a few numbers.

    Args:
        gpu_name: GPU type, a file in `config/gpus/`.
        gpus_per_node: GPUs joined by scale-up links.
        nic_bytes_per_s_per_node: All adapters of a node together, one direction; 0 for none. Unit: byte/s.
        config: Folder of the configuration.
        num_gpus: GPUs of the cluster.
        network: More about the network; its bandwidth is replaced by the one given.
    """
    gpu = Catalogue(config).gpu(gpu_name)
    inside = node_levels(gpu, gpus_per_node, config)
    if not nic_bytes_per_s_per_node:
        return Fabric(inside)
    found = replace(network or Network(0.0), bytes_per_s_per_node=nic_bytes_per_s_per_node)
    return Fabric(inside + network_levels(found, load_link(found.link, config), gpus_per_node, num_gpus))
