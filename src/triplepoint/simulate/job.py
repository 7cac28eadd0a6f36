"""The job to simulate: a model, a layout and machines. A job is one training step, repeated."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from triplepoint.config.gpu import GpuConfig
from triplepoint.config.mesh import RankMesh
from triplepoint.config.model import ModelConfig
from triplepoint.config.point import Layout, Offload, Overlap, Point, Precision, Recompute
from triplepoint.config.task import TARGETS
from triplepoint.simulate.fabric import Fabric
from triplepoint.simulate.stacks import Stack, stack_of


@dataclass(frozen=True)
class Job:
    """One training job.

    Attributes:
        model: The architecture.
        layout: Parallelism, see `Layout`; ranks are numbered as in `RankMesh`.
        micro_batch_size: Sequences per rank and micro-batch.
        global_batch_size: Sequences per step.
        sequence_length: Tokens per sequence.
        gpu: The GPU type, with its peaks.
        fabric: The fabric that joins the GPUs.
        software: Entry of the software stack in the registry, with the settings of the run.
        precision: Number format of the GEMMs; parameters and activations have 2 bytes, in fp32 4.
        recompute: Activations recomputed in the backward pass.
        recompute_layers: With `full`, the number of recomputed layers of each chunk, the first ones; None for all.
        overlap: Communication overlapped with computation: grad, param, tp, ep.
        trainable: All parameters, or only LoRA adapters.
        lora_rank: Rank of the adapters.
        lora_targets: Linear layers with adapters, named as in Megatron-LM: linear_qkv, linear_proj, linear_fc1,
            linear_fc2; None for all. Routed experts have none.
        shard_size: Data parallel ranks that hold one sharded copy; groups of this size hold copies of one another
            (hybrid sharding). None: all of them.
        keeps_gathered: Whether parameters gathered for a forward pass stay until its backward pass (no resharding).
        expert_imbalance: Load of the fullest expert parallel rank over the mean, without a capacity factor; None for
            the default of the software.
        offload: Data kept in host memory: optimizer state (`optim`), activations.
        stack: Framework and version, by which step times may be calibrated.
        draw: Number of the random draw of parts, from 0: each repeat of a simulated run has another one.
        nodes: Node of the cluster at every place of the rank order; empty for the order of the cluster.
        power_limits_w: Power limits of single GPUs, by name such as node1.gpu3, in addition to those of the cluster.
            Unit: W.
        waits_for_stages: Whether pipeline stages wait for one another; False to find the cost of bubbles.
    """

    model: ModelConfig
    layout: Layout
    micro_batch_size: int
    global_batch_size: int
    sequence_length: int
    gpu: GpuConfig
    fabric: Fabric
    software: Stack
    precision: Precision = "bf16"
    recompute: Recompute = "none"
    recompute_layers: int | None = None
    overlap: frozenset[Overlap] = field(default_factory=frozenset)
    trainable: Literal["all", "lora"] = "all"
    lora_rank: int = 16
    lora_targets: frozenset[str] | None = None
    shard_size: int | None = None
    keeps_gathered: bool = False
    expert_imbalance: float | None = None
    offload: frozenset[Offload] = field(default_factory=frozenset)
    stack: str = ""
    draw: int = 0
    nodes: tuple[int, ...] = ()
    power_limits_w: tuple[tuple[str, float], ...] = ()
    waits_for_stages: bool = True

    def __hash__(self) -> int:
        """Return a hash of what jobs of one search differ in: that of all sections takes 20 times as long."""
        size = (self.micro_batch_size, self.global_batch_size, self.sequence_length)
        return hash((self.model.name, self.layout, size, self.recompute, self.overlap, self.stack))

    @cached_property
    def mesh(self) -> RankMesh:
        """Ranks and process groups."""
        return RankMesh(self.layout, self.num_copies)

    @property
    def in_any_split(self) -> "Job":
        """The job without its split of layers over stages, on which the work and cost of a layer do not depend."""
        if not self.layout.pipeline_layers:
            return self
        return replace(self, layout=self.layout.model_copy(update={"pipeline_layers": ()}))

    @property
    def of_layers(self) -> "Job":
        """The job without what its layers do not depend on: stages, replicas, the step, what is recomputed.

        Whether there is a pipeline stays: its last stage holds a copy of the table of multi-token prediction.
        """
        layout = self.layout.model_copy(
            update={"pp": min(self.layout.pp, 2), "vp": 1, "dp": 1, "schedule": "1f1b", "pipeline_layers": ()}
        )
        overlap = self.overlap & {"tp", "ep"}
        return replace(
            self, layout=layout, global_batch_size=1, recompute="none", recompute_layers=None, overlap=overlap,
            shard_size=None, keeps_gathered=False, draw=0, nodes=(), power_limits_w=(), waits_for_stages=True,
        )  # fmt: skip

    @property
    def family(self) -> str:
        """Name that versions of its stack share."""
        return self.software.family(self.stack)

    @property
    def num_gpus(self) -> int:
        """World size."""
        return self.mesh.num_ranks

    @property
    def num_microbatches(self) -> int:
        """Micro-batches per rank and step."""
        return self.global_batch_size // (self.micro_batch_size * self.layout.dp)

    @property
    def num_copies(self) -> int:
        """Number of groups of data parallel ranks that hold the same sharded copy."""
        is_sharded = self.layout.data_parallel_sharding != "no_shard"
        return self.layout.dp // self.shard_size if is_sharded and self.shard_size else 1

    @property
    def tokens_per_microbatch(self) -> int:
        """Tokens of a micro-batch on one rank, before tensor parallel ranks split them: `s*b/cp`."""
        return self.sequence_length * self.micro_batch_size // self.layout.cp

    @classmethod
    def of(cls, point: Point, gpu: GpuConfig, fabric: Fabric, stack: str, config: Path) -> "Job":
        """Return the job of a point.

        Args:
            point: The point.
            gpu: The GPU type.
            fabric: The fabric that joins the GPUs.
            stack: Framework and version.
            config: Folder of the configuration, with the registry of stacks.
        """
        software = stack_of(point, stack, config)
        return cls(
            model=point.model,
            layout=point.layout,
            micro_batch_size=point.micro_batch_size,
            global_batch_size=point.global_batch_size,
            sequence_length=point.sequence_length,
            gpu=gpu,
            fabric=fabric if software.reduces_in_switches else fabric.without_reduction(),
            software=software,
            precision=point.precision,
            recompute=point.recompute,
            recompute_layers=point.recompute_layers,
            overlap=frozenset(point.overlap),
            offload=frozenset(point.offload),
            stack=stack,
            draw=(point.parts_of_repeat or point.repeat) - 1,
            nodes=point.node_order,
            power_limits_w=_power_limits(point),
            **_adapters(point),
        )


def _power_limits(point: Point) -> tuple[tuple[str, float], ...]:
    """Return the power limits of single GPUs by node name.

    In a simulated run a host is a node of the cluster; otherwise its place in the list of hosts is the node's number.
    """
    is_simulated = point.engine == "simulated"
    nodes = {} if is_simulated else {host: f"node{place}" for place, host in enumerate(point.hosts)}
    return tuple((f"{nodes.get(host, host)}.gpu{gpu}", limit) for (host, gpu), limit in point.power_limits_w.items())


def _adapters(point: Point) -> Mapping[str, Any]:
    lora = point.lora
    if lora is None:
        return {}
    targets = None if lora.targets == TARGETS else frozenset(lora.targets)
    return {"trainable": "lora", "lora_rank": lora.rank, "lora_targets": targets}
