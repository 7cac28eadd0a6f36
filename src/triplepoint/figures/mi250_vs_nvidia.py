"""Figure `mi250_vs_nvidia`: MI250 against H200 and H100 per GPU, with the same models, layouts and batch."""

from collections.abc import Mapping

from matplotlib.figure import Figure
from pandas import DataFrame

from triplepoint.effects.equal_work import change_of_pairs
from triplepoint.effects.titles import Statement
from triplepoint.figures import marks, style
from triplepoint.figures.grouped import NAMES, comparable, draw_groups
from triplepoint.figures.quantities import Quantity

QUANTITIES = (
    Quantity("tokens_per_s_per_gpu", "token/s\nper {rank}"),
    Quantity("mfu", "MFU (%)", scale=100),
    Quantity("gpu_power_w", "GPU power\n(W)", limit=("gpu_power_limit_w", "limit {:.0f} W")),
    Quantity("gpu_energy_per_token_j", "energy\n(J/token)"),
    Quantity("sm_clock_busy_mhz", "clock while\nbusy (GHz)", scale=1e-3, from_zero=False),
)
_NAMES = {quantity.column: NAMES[quantity.column] for quantity in QUANTITIES}
_BASE = "mi250"


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots, one row per point. A GPU of MI250 is one of its two dies."""
    points = comparable(tables["points"])
    points = points.assign(series=points["gpu"].fillna(points["device_type"]), panel=points["model"])
    both = points.groupby(["model", "layout"])["series"].transform("nunique") > 1
    points = points[both] if both.any() else points
    others = [gpu for gpu in marks.GPU_TYPES if gpu != _BASE and (points["series"] == gpu).any()]
    if (points["series"] == _BASE).any() and others:
        names = {gpu: marks.GPU_TYPES[gpu].name for gpu in others}
        changes = {
            name: change_of_pairs(
                points, ["model", "layout"], "series", (_BASE, gpu), _NAMES, ("one die of MI250", name)
            )
            for gpu, name in names.items()
        }
        answers = [_with_subject(change.answer) for change in changes.values()]
    else:
        changes, answers = {}, ["No MI250 and other GPU type to compare"]
    page, numbers = draw_groups(answers, changes, points, QUANTITIES, marks.GPU_TYPES)
    return page.finish(), numbers


def _with_subject(answer: Statement | str) -> Statement | str:
    """Return an answer with a common question, so that the report treats all GPU types as one."""
    return answer._replace(question="MI250") if isinstance(answer, Statement) else answer
