"""Over which ranks each parameter is repeated, and over which its gradient is a sum: it follows from its kind.

| parameter           | repeated over   | gradient summed over                       |
|---------------------|-----------------|--------------------------------------------|
| split linear layer  | dp              | dp                                         |
| norm, positions     | dp, tp          | dp, and tp with sequence parallelism       |
| router              | dp, tp          | dp, and tp (sequence or experts are split) |
| expert              | edp, tp         | edp, and tp with expert parallelism        |
| expert split over tp| dp              | dp                                         |

FSDP shares out what is repeated over dp (edp) and sums it itself.
"""

from torch import nn
from torch.distributed.tensor import DTensor, Shard

from triplepoint.config.point import Point
from triplepoint.launch.engines.native.gradients import Placed
from triplepoint.launch.engines.native.mesh import Mesh
from triplepoint.launch.engines.native.model import Stage
from triplepoint.launch.engines.native.parallel import is_sharded


def place(stage: Stage, point: Point, mesh: Mesh) -> list[Placed]:
    """Return the stage's parameters with their ranks, in the order of the forward pass."""
    return [_place(name, parameter, point, mesh) for name, parameter in stage.named_parameters()]


def _place(name: str, parameter: nn.Parameter, point: Point, mesh: Mesh) -> Placed:
    layout = point.layout
    is_expert = ".experts." in name
    repeats = mesh.edp if is_expert else mesh.dp
    is_reduced_by_fsdp = is_sharded(point) and repeats.size() > 1
    # On the tensor parallel mesh: FSDP hides its own split behind a mesh of its own.
    is_split = is_split_over_tp(parameter, mesh)
    return Placed(
        parameter,
        None if is_reduced_by_fsdp or repeats.size() == 1 else repeats.get_group(),
        is_tp_partial=layout.tp > 1 and not is_split and _sees_part(name, parameter, point, mesh),
        is_counted=(is_reduced_by_fsdp or repeats.get_local_rank() == 0)
        and (is_split or mesh.tp.get_local_rank() == 0),
    )


def is_split_over_tp(parameter: nn.Parameter, mesh: Mesh) -> bool:
    """Return whether tensor parallel ranks hold different parts of the parameter."""
    if mesh.layout.tp == 1 or not isinstance(parameter, DTensor):
        return False
    names = parameter.device_mesh.mesh_dim_names or ()
    return "tp" in names and isinstance(parameter.placements[names.index("tp")], Shard)


def _sees_part(name: str, parameter: nn.Parameter, point: Point, mesh: Mesh) -> bool:
    """Return whether a parameter that is whole on every tensor parallel rank gets a part of its gradient there."""
    if isinstance(parameter, DTensor) and "tp" in (parameter.device_mesh.mesh_dim_names or ()):
        return False  # The bias of a row-wise layer: DTensor sums it.
    if ".router." in name:
        return True
    return point.layout.sequence_parallel or (".experts." in name and mesh.ep is not None)
