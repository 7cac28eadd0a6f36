"""Schema of `config/published/claims.yaml`: published claims, and the figures that they name, as tables of numbers."""

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from triplepoint.config.base import Strict
from triplepoint.errors import UserError, nearest
from triplepoint.verdicts.number import Direction, Number

FILE = Path("published", "claims.yaml")
"""Path of the claims in the folder of the configuration."""
FIGURES = Path("published", "figures")
"""Path of the figures in the folder of the configuration."""

Settings = dict[str, Any]
"""Required values of columns in table `points`. A list gives alternatives; for a column of names, it gives exactly the
names."""
Cells = dict[str, str]
"""Row of a figure: text by column."""
_RANGE = re.compile(r"~?(-?\d+(?:\.\d+)?)(?:-(\d+(?:\.\d+)?))?")


class Figure(Strict):
    """A published figure as a table of numbers, with the points that its rows are about."""

    file: Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
    """Table in `config/published/figures/`, without `.csv`."""
    source: Annotated[str, Field(min_length=4)]
    """Publication of the figure."""
    name: str
    """Name of a row: a pattern with columns of the figure in braces."""
    settings: Settings
    """Settings of the points of all rows."""
    keys: dict[str, str | dict[str, Settings]]
    """Columns that determine the point of a row: the setting that a column holds, or the settings by text of its
    cells."""
    fitted: str | None = None
    """Constants of the simulator that were set by this figure, so that simulated runs that agree do not confirm them;
    null where there are none."""
    where: dict[str, str] = {}
    """Rows that count, as text by column; empty for all rows."""

    def settings_of(self, cells: Cells) -> Settings:
        """Return the settings of a row's point. Raises `UserError` if `keys` lacks the text of a cell."""
        settings = dict(self.settings)
        for column, meaning in self.keys.items():
            if isinstance(meaning, str):
                settings[meaning] = self.whole_number(cells, column)
            elif cells[column] in meaning:
                settings |= meaning[cells[column]]
            else:
                where = f"{FIGURES / self.file}.csv: {column} {cells[column]!r}"
                raise UserError(f"{where}: {FILE} does not explain it{nearest(cells[column], meaning)}")
        return settings

    def whole_number(self, cells: Cells, column: str) -> int:
        """Return the whole number in a cell. Raises `UserError` if it holds anything else."""
        if not re.fullmatch(r"\d{1,9}", cells[column]):
            raise UserError(f"{FIGURES / self.file}.csv: {column} {cells[column][:40]!r}: expected a whole number")
        return int(cells[column])


class Columns(Strict):
    """Published number of a row, as the sum over columns of a figure."""

    columns: Annotated[list[str], Field(min_length=1)]
    """Columns whose numbers are added. A cell is a number or a range such as `0-3.2`."""
    scale: float = 1.0
    """Factor from the unit of the figure to the unit of the quantity."""
    accuracy: Annotated[float, Field(ge=0)]
    """Reading error of each column on either side, in the unit of the quantity."""

    def number(self, cells: Cells) -> Number | None:
        """Return the number of a row; None where a cell is empty or states that the point did not fit."""
        ranges = [read_number(cells[column]) for column in self.columns]
        if not all(ranges):
            return None
        low, high = (math.fsum(ends[end] for ends in ranges if ends) * self.scale for end in (0, 1))
        accuracy = self.accuracy * math.sqrt(len(ranges))
        return Number((low + high) / 2, low - accuracy, high + accuracy)


class StepFromEfficiency(Strict):
    """Step time up to a factor, from efficiency in samples per second and joule: 1 / sqrt(efficiency * power)."""

    efficiency: Annotated[list[str], Field(min_length=1)]
    """Columns of efficiency over the best efficiency; their mean counts."""
    power: str
    """Column of power. Unit: W."""
    efficiency_accuracy: Annotated[float, Field(gt=0)]
    """Reading error of efficiency on either side."""
    power_accuracy: Annotated[float, Field(ge=0)]
    """Reading error of power on either side. Unit: W."""
    least_efficiency: Annotated[float, Field(gt=0)] = 0.05
    """Least efficiency that counts; the reading of smaller values is too coarse."""

    def number(self, cells: Cells) -> Number | None:
        """Return the relative step time of a row; None where efficiency or power is missing or too coarse."""
        ranges = [read_number(cells[column]) for column in (*self.efficiency, self.power)]
        if not all(ranges):
            return None
        *efficiencies, power_w = (ends[0] for ends in ranges if ends)
        efficiency = math.fsum(efficiencies) / len(efficiencies)
        if efficiency < self.least_efficiency:
            return None
        time = (efficiency * power_w) ** -0.5
        accuracy = 0.5 * math.hypot(self.efficiency_accuracy / efficiency, self.power_accuracy / power_w)
        return Number.within(time, time * accuracy)


class Claim(Strict):
    """A published claim and its source."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    """Identifier of the claim, as in table `claims`."""
    says: Annotated[str, Field(min_length=8)]
    """The claim in one sentence."""
    source: str | None = None
    """Section or figure of the publication. Default: that of the figure."""


class FigureClaim(Claim):
    """Numbers of a figure, compared row by row with the same quantity of ours."""

    kind: Literal["figure"]
    figure: str
    """Key in `figures`."""
    judged: Annotated[list[Literal["value", "trend", "order", "fits"]], Field(min_length=1)]
    """Comparisons to make. `value`: every number; `trend`: change along an axis, in each group of rows; `order`: order
    of the rows; `fits`: points that fit in memory, which are those with a published number."""
    quantity: str
    """Quantity of ours: a column of table `points`, or one of `verdicts/quantities.py`."""
    published: Columns | StepFromEfficiency
    """Published number of a row."""
    along: str | None = None
    """Column of a trend, which runs from its smallest to its largest value."""
    is_relative: bool = False
    """Whether numbers are published without their unit, and are compared over the median of the common points."""


class SlotClaim(Claim):
    """Numbers of single GPUs in a figure, by node and slot."""

    kind: Literal["slots"]
    figure: str
    """Key in `figures`."""
    judged: Literal["slot", "gap", "largest_ratio", "gap_sign"]
    """Comparison to make. `slot`: mean of each slot over nodes; `gap`: mean of rear less mean of front slots;
    `largest_ratio`: hottest rear over coolest front slot of a node, less 1, in the node with the most; `gap_sign`:
    whether rear slots are above front slots."""
    quantity: str
    """Column of table `gpus`, or `throttle_fraction`."""
    published: Columns
    """Published number of a row."""
    node: str
    """Column of the node, numbered from 1."""
    slot: str
    """Column of the slot in the node."""


class StatedClaim(Claim):
    """A number in the text, compared with the largest of ours."""

    kind: Literal["stated"]
    stated: tuple[float, float]
    """Lower and upper end of the stated number, in the unit of the quantity."""
    quantity: str
    """Quantity of ours, as in `FigureClaim`."""
    points: Settings
    """Points that the claim is about."""


class ChangeClaim(Claim):
    """The direction in which a quantity changes with a setting, without the size of the change."""

    kind: Literal["change"]
    quantity: str
    """Quantity of ours, as in `FigureClaim`."""
    direction: Direction
    """Direction of the change."""
    points: Settings
    """Points that the claim is about."""
    before: Settings
    """Settings of a point before the change."""
    after: Settings
    """Settings of the point after the change."""
    alike: list[str] | None = None
    """Columns of table `points` that a pair has in common. Default: every setting that does not change."""
    least: Annotated[float, Field(ge=0)] = 0.0
    """Smallest change that counts, in the unit of the quantity."""
    least_share: Annotated[float, Field(ge=0)] = 0.0
    """Smallest change that counts, as a share of the value before."""
    best: Literal["highest", "lowest"] | None = None
    """Compare only the points with the highest or lowest value on either side. Default: compare every pair."""


class ExcessClaim(Claim):
    """The sign of a quantity within each single run."""

    kind: Literal["excess"]
    quantity: str
    """Quantity of ours, as in `FigureClaim`."""
    direction: Direction
    """`rises`: above zero; `falls`: below zero."""
    points: Settings
    """Points that the claim is about."""
    least: Annotated[float, Field(ge=0)]
    """Smallest value that counts, in the unit of the quantity."""


class UnknownClaim(Claim):
    """A claim that no grid here can judge."""

    kind: Literal["unknown"]
    unknown: Annotated[str, Field(min_length=8)]
    """Reason that it cannot be judged."""


class Cell(Strict):
    """A number of a figure."""

    figure: str
    """Key in `figures`."""
    row: dict[str, str]
    """Text of the columns that identify the row."""
    column: str
    """Column of the number."""


class FindingClaim(Claim):
    """Numbers of a study that contradict its text or one another."""

    kind: Literal["finding"]
    numbers: Annotated[list[tuple[Cell, Cell]], Field(min_length=1)]
    """Pairs of contradicting numbers."""
    unit: str
    """Unit of the numbers."""


AnyClaim = Annotated[
    FigureClaim | SlotClaim | StatedClaim | ChangeClaim | ExcessClaim | UnknownClaim | FindingClaim,
    Field(discriminator="kind"),
]


class Claims(Strict):
    """Content of `config/published/claims.yaml`."""

    study: Annotated[str, Field(min_length=8)]
    """The published study and its source."""
    rear_slots: list[int]
    """Slots of a node of eight GPUs that are behind others in the air flow."""
    front_slots: list[int]
    """Slots of a node of eight GPUs at the air inlet."""
    figures: dict[str, Figure]
    """Figures by the name that claims use."""
    claims: list[AnyClaim]
    """Claims in the order in which they are shown."""


def read_number(text: str) -> tuple[float, float] | None:
    """Return both ends of a number or a range such as `0-3.2`; None for any other text."""
    match = _RANGE.fullmatch(text.strip())
    if not match:
        return None
    low = float(match[1])
    return low, float(match[2] or low)


def spell(settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield settings in words for readers, such as `tp 8`."""
    for name, value in settings.items():
        words = " or ".join(map(str, value)) if isinstance(value, list) else str(value)
        yield f"{name} {words or 'none'}"
