"""Figure `lora`: fine-tuning of adapters (LoRA) against training of all weights, in the same layouts and batch."""

from collections.abc import Mapping

from matplotlib.figure import Figure
from pandas import DataFrame

from triplepoint.effects.equal_work import change_of_pairs
from triplepoint.figures import labels, marks, style
from triplepoint.figures.grouped import NAMES, NEED, comparable, draw_groups
from triplepoint.figures.quantities import Quantity

QUANTITIES = (
    Quantity("tokens_per_s_per_gpu", "token/s\nper {rank}"),
    Quantity("gpu_power_w", "GPU power\n(W)", limit=("gpu_power_limit_w", "limit {:.0f} W")),
    Quantity("gpu_temp_c", "GPU (°C)", limit=("gpu_throttle_temp_c", "throttled at {:.0f} °C"), from_zero=False),
    Quantity("gpu_energy_per_token_j", "energy\n(J/token)"),
    Quantity("needed_memory_bytes", "memory\n(GiB)", limit=("memory_gib", "memory {:.0f} GiB"), scale=2**-30),
)
_NAMES = {NEED: NAMES[NEED]} | {quantity.column: NAMES[quantity.column] for quantity in QUANTITIES}
"""Names of quantities by column. Memory is first, since LoRA saves it in all layouts."""


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots: layouts that ran both tasks; all layouts if there are none."""
    points = tables["points"]
    may_not_fit = [labels.may_not_fit(row) for _, row in points.iterrows()]
    points = points.assign(memory_gib=points["memory_capacity_bytes"] * 2**-30, may_not_fit=may_not_fit)
    points = comparable(points)
    points = points.assign(series=points["task"], panel=points["model"])
    points = points[points["series"].isin(list(marks.TASKS))]
    keys = ["model", "cluster", "num_gpus", "layout"]
    both = points.groupby(keys)["series"].transform("nunique") > 1
    points = points[both] if both.any() else points
    change = change_of_pairs(points, keys, "series", ("pretrain", "lora"), _NAMES, ("full training", "LoRA"))
    page, numbers = draw_groups(change.answer, {"": change}, points, QUANTITIES, marks.TASKS)
    return page.finish(), numbers
