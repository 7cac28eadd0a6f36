"""Process groups of torch, of the ranks `config.mesh.RankMesh` says."""

from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from triplepoint.config.mesh import RankMesh
from triplepoint.config.point import Layout


@dataclass(frozen=True)
class Mesh:
    """The device meshes this rank belongs to, and its place in each."""

    layout: Layout
    pp: DeviceMesh
    dp: DeviceMesh
    tp: DeviceMesh
    ep: DeviceMesh | None
    """Ranks that hold different experts; None without expert parallelism."""
    edp: DeviceMesh
    """Ranks that hold the same experts; `dp` without expert parallelism."""
    world: dist.ProcessGroup
    """All ranks, for barriers and norms: a mesh as large as the world would otherwise share its group with them,
    and a trace could not tell the two apart."""
    back: dist.ProcessGroup | None = None
    """The ranks of the pipeline once more, for tokens on their way from the last stage to the first; None in training.
    NCCL takes the messages between two ranks of a group one after another, whichever way they go."""

    @property
    def ep_group(self) -> dist.ProcessGroup | None:
        """Expert parallel ranks, None without expert parallelism."""
        return None if self.ep is None else self.ep.get_group()

    @property
    def tp_group(self) -> dist.ProcessGroup | None:
        """Tensor parallel ranks, None without tensor parallelism."""
        return None if self.layout.tp == 1 else self.tp.get_group()

    def roles(self) -> dict[str, tuple[str, list[int]]]:
        """Return role and global ranks of each process group, keyed by torch's name of the group."""
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
        has_way_back: Whether the last stage of a pipeline has something for the first.
    """
    world = dist.new_group(group_desc="world")
    back = _way_back(layout) if has_way_back and layout.pp > 1 else None
    if layout.ep == 1:
        root = init_device_mesh(device_type, (layout.pp, layout.dp, layout.tp), mesh_dim_names=("pp", "dp", "tp"))
        return Mesh(layout, root["pp"], root["dp"], root["tp"], None, root["dp"], world, back)
    sizes = (layout.pp, layout.dp // layout.ep, layout.ep, layout.tp)
    root = init_device_mesh(device_type, sizes, mesh_dim_names=("pp", "edp", "ep", "tp"))
    # The only way to a mesh over two dimensions that FSDP accepts; torchtitan builds its own like this.
    dp = root["edp", "ep"]._flatten("dp")
    return Mesh(layout, root["pp"], dp, root["tp"], root["ep"], root["edp"], world, back)


def _way_back(layout: Layout) -> dist.ProcessGroup:
    """Return one more group of this rank's pipeline."""
    mesh = RankMesh(layout)
    pipelines = [list(mesh.group("pp").ranks(first)) for first in mesh.stage(0)]
    own, _ = dist.new_subgroups_by_enumeration(pipelines, group_desc="pp_back")
    assert own is not None
    return own
