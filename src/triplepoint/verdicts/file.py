"""What is published: `config/published/claims.yaml`, and the figures it names as tables of numbers."""

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
"""Below the folder of the configuration."""
FIGURES = Path("published", "figures")

Settings = dict[str, Any]
"""Values of columns of table `points`; a list holds values of which any may be there, of a column of names all."""
Cells = dict[str, str]
"""Text by column of one row of a figure."""
_RANGE = re.compile(r"~?(-?\d+(?:\.\d+)?)(?:-(\d+(?:\.\d+)?))?")


class Figure(Strict):
    """A published figure as a table of numbers, and which points its rows are of."""

    file: Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
    """Table in `config/published/figures/`, without `.csv`."""
    source: Annotated[str, Field(min_length=4)]
    """Where it is published."""
    name: str
    """What a row is called: a pattern with the columns of `keys`."""
    settings: Settings
    """Settings that all rows share."""
    keys: dict[str, str | dict[str, Settings]]
    """Columns that say which point a row is of: the setting they hold, or the settings that each text means."""
    fitted: str | None = None
    """Constants of the simulator that were set by this figure, so that agreement of simulated runs is no check of them.
    None: none."""
    where: dict[str, str] = {}
    """Text of columns of the rows that are meant. None: all rows."""

    def settings_of(self, cells: Cells) -> Settings:
        """Return the settings of a row's point."""
        found = dict(self.settings)
        for column, meaning in self.keys.items():
            if isinstance(meaning, str):
                found[meaning] = self.whole_number(cells, column)
            elif cells[column] in meaning:
                found |= meaning[cells[column]]
            else:
                where = f"{FIGURES / self.file}.csv: {column} {cells[column]!r}"
                raise UserError(f"{where}: {FILE} does not explain it{nearest(cells[column], meaning)}")
        return found

    def whole_number(self, cells: Cells, column: str) -> int:
        """Return what a column that counts or numbers something holds in a row."""
        if not re.fullmatch(r"\d{1,9}", cells[column]):
            raise UserError(f"{FIGURES / self.file}.csv: {column} {cells[column][:40]!r}: expected a whole number")
        return int(cells[column])


class Columns(Strict):
    """Published numbers that stand in a figure, perhaps in several columns."""

    columns: Annotated[list[str], Field(min_length=1)]
    """Columns whose numbers are added up. A cell is a number, or a range such as `0-3.2`."""
    scale: float = 1.0
    """Factor from their unit to that of ours."""
    accuracy: Annotated[float, Field(ge=0)]
    """How far each column could be read off, on either side, in the unit of ours."""

    def number(self, cells: Cells) -> Number | None:
        """Return the number of a row; None where a cell is empty or says that the point did not fit."""
        found = [read_number(cells[column]) for column in self.columns]
        if not all(found):
            return None
        low, high = (math.fsum(one[end] for one in found if one) * self.scale for end in (0, 1))
        accuracy = self.accuracy * math.sqrt(len(found))
        return Number((low + high) / 2, low - accuracy, high + accuracy)


class StepFromEfficiency(Strict):
    """Time of a step, up to a factor, of samples per second and joule: 1 / sqrt(efficiency * power)."""

    efficiency: Annotated[list[str], Field(min_length=1)]
    """Columns of efficiency over the best; their mean counts."""
    power: str
    """Column of power. Unit: W."""
    efficiency_accuracy: Annotated[float, Field(gt=0)]
    """How far efficiency could be read off."""
    power_accuracy: Annotated[float, Field(ge=0)]
    """How far power could be read off. Unit: W."""
    least_efficiency: Annotated[float, Field(gt=0)] = 0.05
    """Below it what could be read is too coarse."""

    def number(self, cells: Cells) -> Number | None:
        """Return the number of a row; None where efficiency or power could not be read."""
        found = [read_number(cells[column]) for column in (*self.efficiency, self.power)]
        if not all(found):
            return None
        *efficiencies, power_w = (one[0] for one in found if one)
        efficiency = math.fsum(efficiencies) / len(efficiencies)
        if efficiency < self.least_efficiency:
            return None
        time = (efficiency * power_w) ** -0.5
        accuracy = 0.5 * math.hypot(self.efficiency_accuracy / efficiency, self.power_accuracy / power_w)
        return Number.within(time, time * accuracy)


class Claim(Strict):
    """What is said, and where."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    """Name of the claim, the same in table `claims`."""
    says: Annotated[str, Field(min_length=8)]
    """The claim in one sentence."""
    source: str | None = None
    """Section or figure. None: that of the figure."""


class Rows(Claim):
    """What a figure shows, held against the same quantity of ours, row by row."""

    kind: Literal["figure"]
    figure: str
    """Key in `figures`."""
    judged: Annotated[list[Literal["value", "trend", "order", "fits"]], Field(min_length=1)]
    """`value`: every number; `trend`: its change along an axis, in each group of rows; `order`: which rows are above
    which; `fits`: which points ran, those with a published number."""
    quantity: str
    """Quantity of ours: a column of table `points`, or one of `verdicts/quantities.py`."""
    published: Columns | StepFromEfficiency
    """Where the number stands."""
    along: str | None = None
    """Column whose smallest and largest value a trend runs between."""
    is_relative: bool = False
    """Whether numbers are compared over the median of those that both have: published without their unit."""


class Slots(Claim):
    """What a figure shows of single GPUs, by node and slot."""

    kind: Literal["slots"]
    figure: str
    """Key in `figures`."""
    judged: Literal["slot", "gap", "largest_ratio", "gap_sign"]
    """`slot`: mean of each slot over nodes; `gap`: mean of rear less mean of front slots; `largest_ratio`: hottest rear
    over coolest front slot of a node, less 1, at most; `gap_sign`: whether rear is above front."""
    quantity: str
    """Column of table `gpus`, or `throttle_fraction`."""
    published: Columns
    """Where the number stands."""
    node: str
    """Column of the node, from 1."""
    slot: str
    """Column of the slot in the node."""


class Stated(Claim):
    """A number that the text states, held against the largest of ours."""

    kind: Literal["stated"]
    stated: tuple[float, float]
    """Ends of what is stated, in the unit of ours."""
    quantity: str
    """As of `Rows`."""
    points: Settings
    """Points it is stated of."""


class Change(Claim):
    """A change that is said to follow from another, without its size."""

    kind: Literal["change"]
    quantity: str
    """As of `Rows`."""
    direction: Direction
    """What the change is said to do."""
    points: Settings
    """Points it is said of."""
    before: Settings
    """Settings of a point before the change."""
    after: Settings
    """Settings of it after the change."""
    alike: list[str] | None = None
    """Columns of table `points` that a pair has in common. None: every setting that does not change."""
    least: Annotated[float, Field(ge=0)] = 0.0
    """Smallest change that counts, in the unit of the quantity."""
    least_share: Annotated[float, Field(ge=0)] = 0.0
    """The same as a share of the value before."""
    best: Literal["highest", "lowest"] | None = None
    """Only the point with this value counts on either side. None: every pair."""


class Excess(Claim):
    """A sign within single runs: whether a quantity is above zero in each of them."""

    kind: Literal["excess"]
    quantity: str
    """As of `Rows`."""
    direction: Direction
    """`rises`: above zero; `falls`: below it."""
    points: Settings
    """Points it is said of."""
    least: Annotated[float, Field(ge=0)]
    """Smallest value that counts, in its unit."""


class Unknown(Claim):
    """A claim that no grid here can judge."""

    kind: Literal["unknown"]
    unknown: Annotated[str, Field(min_length=8)]
    """Why."""


class Cell(Strict):
    """A number of a figure."""

    figure: str
    """Key in `figures`."""
    row: dict[str, str]
    """Text of the columns that name the row."""
    column: str
    """Column of the number."""


class Finding(Claim):
    """Numbers of a study that contradict what it says, or one another."""

    kind: Literal["finding"]
    numbers: Annotated[list[tuple[Cell, Cell]], Field(min_length=1)]
    """Pairs of numbers side by side."""
    unit: str
    """Unit of the numbers."""


AnyClaim = Annotated[Rows | Slots | Stated | Change | Excess | Unknown | Finding, Field(discriminator="kind")]


class Claims(Strict):
    """Content of `config/published/claims.yaml`."""

    study: Annotated[str, Field(min_length=8)]
    """What is published, with where."""
    rear_slots: list[int]
    """Slots of a node of eight GPUs that stand behind others in its air."""
    front_slots: list[int]
    """Slots at its inlet."""
    figures: dict[str, Figure]
    """Figures by the name that claims call them."""
    claims: list[AnyClaim]
    """Claims in the order in which they are shown."""


def read_number(text: str) -> tuple[float, float] | None:
    """Return both ends of a number or range such as `0-3.2`; None for an empty cell or another word."""
    found = _RANGE.fullmatch(text.strip())
    if not found:
        return None
    low = float(found[1])
    return low, float(found[2] or low)


def spell(settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield settings as a reader takes them, such as `tp 8`."""
    for name, value in settings.items():
        words = " or ".join(map(str, value)) if isinstance(value, list) else str(value)
        yield f"{name} {words or 'none'}"
