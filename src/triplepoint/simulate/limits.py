"""Limits of the simulator, asked through `config.rules.refusal` after the rules of all engines."""

from triplepoint.config.point import Point
from triplepoint.config.rules import Rule
from triplepoint.simulate.timeline.schedule import MOST_PASSES


def check_order(point: Point) -> str | None:
    """The order of passes can be made: whole groups of micro-batches, and not too many passes."""
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


LIMITS: tuple[Rule, ...] = (check_order,)
"""What the simulator cannot do."""
