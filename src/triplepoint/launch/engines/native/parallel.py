"""Parallelise the model: process groups of a rank, layers split over tensor parallel ranks, sharding by FSDP2."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from triplepoint.config.mesh import RankMesh
from triplepoint.config.model import ModelConfig
from triplepoint.config.point import Layout, Point
from triplepoint.launch.engines.native.model import FeedForward, Linear, Stage, TransformerLayer, recompute_callers
from triplepoint.launch.engines.native.moe import MixtureOfExpertsBlock
from triplepoint.launch.engines.native.parameters import add_adapters, freeze, materialise, weights_of
from triplepoint.launch.engines.native.tensor_parallel import Boundary, Part, split_parameter


@dataclass(frozen=True)
class Mesh:
    """The device meshes and process groups of this rank."""

    layout: Layout
    pp: DeviceMesh
    dp: DeviceMesh
    tp: DeviceMesh
    ep: DeviceMesh | None
    """Expert parallel ranks, which have different experts; None without expert parallelism."""
    edp: DeviceMesh
    """Expert data parallel ranks, which have the same experts; `dp` without expert parallelism."""
    world: dist.ProcessGroup
    """All ranks, for barriers and norms. It is not torch's default group: a mesh as large as the world uses that one,
    and traces could not tell the two apart."""
    back: dist.ProcessGroup | None = None
    """A second group of the pipeline's ranks, for tokens from the last stage to the first; None in training.
    Within one group NCCL carries out the sends between two ranks one after another, whatever their direction."""

    @property
    def ep_group(self) -> dist.ProcessGroup | None:
        """Expert parallel ranks, None without expert parallelism."""
        return None if self.ep is None else self.ep.get_group()

    @property
    def tp_group(self) -> dist.ProcessGroup | None:
        """Tensor parallel ranks, None without tensor parallelism."""
        return None if self.layout.tp == 1 else self.tp.get_group()

    def roles(self) -> dict[str, tuple[str, list[int]]]:
        """Return role and global ranks of each process group, by torch's name of the group."""
        meshes = {"pp": self.pp, "dp": self.dp, "tp": self.tp, "ep": self.ep}
        if self.ep is not None:
            meshes["edp"] = self.edp
        groups = [(role, mesh.get_group()) for role, mesh in meshes.items() if mesh is not None]
        groups += [("world", self.world), *([] if self.back is None else [("pp", self.back)])]
        return {group.group_name: (role, dist.get_process_group_ranks(group)) for role, group in groups}


def build_mesh(layout: Layout, device_type: str, has_way_back: bool = False) -> Mesh:
    """Return the meshes of a layout over all ranks of the world.

    Args:
        layout: Degrees; pp*dp*tp is the world size.
        device_type: cpu or cuda.
        has_way_back: Whether the last stage of a pipeline sends to the first.
    """
    world = dist.new_group(group_desc="world")
    back = _way_back(layout) if has_way_back and layout.pp > 1 else None
    if layout.ep == 1:
        root = init_device_mesh(device_type, (layout.pp, layout.dp, layout.tp), mesh_dim_names=("pp", "dp", "tp"))
        return Mesh(layout, root["pp"], root["dp"], root["tp"], None, root["dp"], world, back)
    sizes = (layout.pp, layout.dp // layout.ep, layout.ep, layout.tp)
    root = init_device_mesh(device_type, sizes, mesh_dim_names=("pp", "edp", "ep", "tp"))
    # FSDP accepts a mesh over two dimensions only if it is made this way. Source: torchtitan does the same.
    dp = root["edp", "ep"]._flatten("dp")
    return Mesh(layout, root["pp"], dp, root["tp"], root["ep"], root["edp"], world, back)


def _way_back(layout: Layout) -> dist.ProcessGroup:
    """Return a second process group of this rank's pipeline."""
    mesh = RankMesh(layout)
    pipelines = [list(mesh.group("pp").ranks(first)) for first in mesh.stage(0)]
    group, _ = dist.new_subgroups_by_enumeration(pipelines, group_desc="pp_back")
    assert group is not None
    return group


def compute_dtype(point: Point) -> torch.dtype:
    """Return the type of activations and GEMMs."""
    return torch.bfloat16 if point.precision == "bf16" else torch.float32


def is_sharded(point: Point) -> bool:
    """Return whether data parallel ranks shard optimizer state, gradients or parameters."""
    return point.layout.data_parallel_sharding != "no_shard" and point.layout.dp > 1


def layers_of_stage(point: Point, stage: int) -> range:
    """Return the global numbers of a stage's layers."""
    counts = point.layout.stage_layers(point.model.num_layers)
    start = sum(counts[:stage])
    return range(start, start + counts[stage])


def build_stages(point: Point, mesh: Mesh, device: torch.device) -> dict[int, Stage]:
    """Return this rank's pipeline stages by stage number, with weights, ready to train.

    Stage s is on pipeline rank s modulo pp.
    """
    layout = point.layout
    num_stages = layout.pp * layout.vp
    numbers = range(mesh.pp.get_local_rank(), num_stages, layout.pp)
    return {number: _build_stage(point, mesh, device, number) for number in numbers}


def _build_stage(point: Point, mesh: Mesh, device: torch.device, number: int) -> Stage:
    model = point.model
    with torch.device("meta"):
        layers = {
            layer: TransformerLayer(model, _feed_forward(model, mesh), *recompute_callers(point.recompute_at(place)))
            for place, layer in enumerate(layers_of_stage(point, number))
        }
        stage = Stage(model, layers, point.sequence_length, compute_dtype(point))
    if point.layout.tp > 1:
        split_over_tp(stage, mesh, point.layout.sequence_parallel)
    stage.tie()
    if point.lora is not None:
        with torch.device("meta"):
            add_adapters(stage.layers.values(), point.lora)
    _materialise_and_shard(stage, point, mesh, device)
    return stage


def _feed_forward(model: ModelConfig, mesh: Mesh) -> nn.Module:
    if model.moe is None:
        return FeedForward(model)
    ep_rank = 0 if mesh.ep is None else mesh.ep.get_local_rank()
    return MixtureOfExpertsBlock(model, ep_rank, mesh.ep_group)


def split_over_tp(stage: Stage, mesh: Mesh, sequence_parallel: bool) -> None:
    """Split the stage's linear layers over tensor parallel ranks, in place; parameters stay on the meta device.

    Norms, learned positions, the router and biases added after a sum stay whole on every rank.
    """
    boundary = Boundary(mesh.tp.get_group(), sequence_parallel)
    by_outputs, by_inputs = (Part(dim, mesh.tp.get_local_rank(), mesh.layout.tp) for dim in (0, 1))
    if stage.embedding is not None:
        split_parameter(stage.embedding, "weight", by_outputs)
        stage.embedding.exit = boundary
    if stage.head is not None:
        split_parameter(stage.head, "weight", by_outputs)
        stage.entry = boundary
    for layer in stage.layers.values():
        attention, feed_forward = layer.attention, layer.feed_forward
        _split(attention.query, attention.key, attention.value, part=by_outputs)
        _split(attention.output, part=by_inputs)
        attention.entry = attention.output.exit = boundary
        if isinstance(feed_forward, FeedForward):
            _split_feed_forward(feed_forward, by_outputs, by_inputs)
            feed_forward.entry = feed_forward.down.exit = boundary
        elif mesh.layout.expert_tp > 1:
            # One collective for the input and one for the output of all experts, not of each.
            feed_forward.boundary = boundary
            for expert in feed_forward.experts.values():
                _split_feed_forward(expert, by_outputs, by_inputs)
    if sequence_parallel:
        stage.sequence_start = mesh.tp.get_local_rank() * stage.sequence_length // mesh.layout.tp


def _split_feed_forward(block: FeedForward, by_outputs: Part, by_inputs: Part) -> None:
    _split(*([] if block.gate is None else [block.gate]), block.up, part=by_outputs)
    _split(block.down, part=by_inputs)


def _split(*linears: Linear, part: Part) -> None:
    for linear in linears:
        split_parameter(linear, "weight", part)
        if linear.bias is not None and part.dim == 0:
            split_parameter(linear, "bias", part)


def _materialise_and_shard(stage: Stage, point: Point, mesh: Mesh, device: torch.device) -> None:
    """Set the stage's weights and shard them, layer by layer, so that no rank has more than one layer unsharded."""
    weights = weights_of(point, device)

    def fill(module: nn.Module, prefix: str) -> None:
        materialise(module, prefix, point.seed, point.model.num_layers, device, weights)
        if point.task != "pretrain":
            freeze(module, compute_dtype(point))

    shard = _sharder(point) if is_sharded(point) else None
    for name, layer in stage.layers.items():
        fill(layer, prefix=f"layers.{name}.")
        if shard is None:
            continue
        unsharded: set[nn.Parameter] = set()
        if mesh.ep is not None:
            experts = list(layer.feed_forward.experts.values())
            if mesh.edp.size() > 1:
                shard(experts, mesh=mesh.edp)
            else:
                unsharded = {parameter for expert in experts for parameter in expert.parameters()}
        shard(layer, mesh=mesh.dp, ignored_params=unsharded)
    fill(stage, prefix="")
    if shard is not None:
        shard(stage, mesh=mesh.dp)
        for module in stage.modules():
            if isinstance(module, FSDPModule):
                # The loss is already divided by the global batch: gradients are summed, not averaged.
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)


def _sharder(point: Point) -> Callable[..., Any]:
    """Return `fully_shard` with the point's precision and sharding."""
    # The logits of a split head are a view. The warning is about in-place operations on it, which the loss does not do.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if point.precision == "bf16" else None,
        reduce_dtype=torch.float32,
        # Rotary tables are fp32 on purpose, and activations have the right type already.
        cast_forward_inputs=False,
    )
    reshard = point.layout.data_parallel_sharding == "optim_grads_params"
    return partial(fully_shard, mp_policy=policy, reshard_after_forward=reshard)
