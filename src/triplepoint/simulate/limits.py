"""Limits of the simulator, checked by `config.rules.refusal` after the rules of all engines."""

from triplepoint.config.gpu import GpuConfig
from triplepoint.config.point import Point
from triplepoint.config.rules import Rule
from triplepoint.simulate.timeline.schedule import MOST_PASSES


def check_order(point: Point) -> str | None:
    """The pipeline order can be simulated: whole groups of micro-batches, and not too many passes."""
    if point.task == "inference":
        return None
    layout, count = point.layout, point.num_microbatches
    if layout.vp > 1 and count % layout.pp:
        return (
            f"{layout.schedule} is simulated in groups of pp micro-batches: {layout.pp} does not divide "
            f"num_microbatches {count}; change global_batch_size, or set vp: 1"
        )
    if (passes := count * layout.pp * layout.vp) > MOST_PASSES:
        return f"micro-batches*pp*vp = {passes} passes, at most {MOST_PASSES} are simulated; lower global_batch_size"
    return None


def check_offload(point: Point, gpu: GpuConfig) -> str | None:
    """Offload is simulated for the task, and the host of the GPU type is known."""
    if not point.offload:
        return None
    if "params" in point.offload or point.task == "inference":
        refused = "params" if "params" in point.offload else point.offload[0]
        return f"offload: {refused} is not simulated in {point.task}; set offload: [] for a prediction"
    if gpu.host_link is None or gpu.host_memory_bandwidth is None:
        missing = "pcie_bandwidth, host_memory_bandwidth"
        return f"offload: the host of GPU type {gpu.name} is not known ({missing}); set offload: []"
    return None


LIMITS: tuple[Rule, ...] = (check_order,)
"""Rules of what the simulator cannot run."""
