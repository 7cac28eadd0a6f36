"""The declaration of a setting, beside the type and default of its field: what the rest of the program derives from."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import BaseModel

Row = Mapping[str, Any]
"""Values of all settings of a point by name: `point.settings_of`, or a row of table `points`."""

Text = str | Mapping[Any, str] | Callable[[Row], str]
"""How a value is written: a pattern it is put into, a text for each value, or a function of the whole row. A pattern
takes the names of a list joined. Nothing is written for null, an empty list, or a value without a text."""


@dataclass(frozen=True)
class Setting:
    """One setting of a point.

    Keys of studies (`Settings`), `docs/config.md`, the folding of points, digests, run ids, columns of tables and
    labels of figures follow from it.

    Attributes:
        about: What it is, its special values included.
        unit: Of its value; 1 of a count, nothing of text.
        label: Its text in run ids and short labels, of lower-case letters, digits, dots and dashes; None for none.
        words: Its text where there is room for words; None where `label` does.
        usual: Value that run ids leave out, a function of the point where it depends on it; None: always written.
        fold: Value that is kept of it in a point, a function of the point; None: as it is. What has no effect is folded
            to the default.
        engines: Engines that have it, when only some do; it must be at its default on the others.
        has_column: Whether table `points` has a column of its name.
        came_later: Left out of digests at its default, so that points from before it keep theirs.
    """

    about: str
    unit: str = ""
    label: Text | None = None
    words: Text | None = None
    usual: Any = None
    fold: Callable[[Any], Any] | None = None
    engines: tuple[str, ...] = ()
    has_column: bool = True
    came_later: bool = False


def declared(section: "type[BaseModel]", prefix: str = "") -> Iterator[tuple[str, Setting]]:
    """Yield name and declaration of each setting among the fields of a section, in order."""
    for name, field in section.model_fields.items():
        for part in field.metadata:
            if isinstance(part, Setting):
                yield prefix + name, part


def write(name: str, text: Text | None, row: Row) -> str:
    """Return the text of a setting's value in a row."""
    if text is None:
        return ""
    if callable(text):
        return text(row)
    value = row[name]
    if isinstance(text, str):
        if isinstance(value, (tuple, list)):
            value = "-".join(value)
        return "" if value is None or value is False or value == "" else text.format(value)
    return text.get(value, "")
