"""What every section of the configuration shares: strict models with one-line errors, and declarations of settings."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic_core import ErrorDetails
import datetime
import json
import re
from pathlib import Path
from typing import Annotated, ClassVar, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)

from triplepoint.errors import MOST_ERRORS, SeveralError, UserError, nearest

Row = Mapping[str, Any]
"""Values of all settings of a point by name: `point.settings_of`, or a row of table `points`."""

Text = str | Mapping[Any, str] | Callable[[Row], str]
"""How a value is written: a pattern it is put into, a text for each value, or a function of the whole row. A pattern
takes the names of a list joined. Nothing is written for null, an empty list, or a value without a text."""


@dataclass(frozen=True)
class Need:
    """What a run must have for a setting to have an effect.

    Attributes:
        is_met: Whether a point has it.
        words: What it is, as a reason says it.
    """

    is_met: Callable[[Any], bool]
    words: str


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
        needs: What the run must have for it to have an effect, where it is of something that not every run has; what
            only joins ranks, and does nothing where there is one, needs nothing.
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
    needs: Need | None = None
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


Section = TypeVar("Section", bound="Strict")

NAME_PATTERN = r"^[a-z0-9][a-z0-9.-]{0,63}$"
"""Names become parts of file names and run ids: lower-case letters, digits, dots and dashes only, and few of them."""
NAME_EXPECTED = "expected at most 64 lower-case letters, digits, dots and dashes"

Size = Annotated[int, Field(gt=0, lt=2**31, strict=True)]
"""What is counted: sequences, tokens, widths. Strict, since YAML reads `yes` as true and true would count as 1."""
Devices = Annotated[int, Field(gt=0, le=1_000_000, strict=True)]
"""Ranks, nodes and degrees of parallelism: more than anyone has, fewer than cannot be listed."""
Layers = Annotated[int, Field(gt=0, le=10_000, strict=True)]
"""Layers and experts, which are gone through one by one."""
StageLayers = Annotated[int, Field(ge=0, le=10_000, strict=True)]
"""Layers of a stage, which may have none."""


MOST_LETTERS = 200
"""Length of such a line, but for keys that are known, from which it names no further one."""
_KNOWN = " (known: "


class Strict(BaseModel):
    """A section of the configuration: unknown keys are refused and values cannot be changed after reading.

    What stands below a field is its description. `config/reference.py` reads it: pydantic would parse the source of
    every section at every start.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class Featured(Strict):
    """A section with features that came later: they are not written where not used, so that digests stay as they were.

    Attributes:
        features: Keys that are left out at their default; settings that came later are among them.
    """

    features: ClassVar[frozenset[str]] = frozenset()
    _left_out: ClassVar[dict[str, Any]] = {}

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Add the settings that came later."""
        cls.features |= {name for name, setting in declared(cls) if setting.came_later}
        cls._left_out = {name: cls.model_fields[name].default for name in cls.features if name in cls.model_fields}

    @model_serializer(mode="wrap")
    def _write(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = write(self)
        for key, default in self._left_out.items():
            if key in written and getattr(self, key) == default:
                del written[key]
        return written


class Quantity(Strict):
    """A number with its unit and where it comes from."""

    value: Annotated[float, Field(ge=0)]
    """The number, in `unit`."""
    unit: str
    """Unit of `value`, spelled as the field demands."""
    source: Annotated[str, Field(min_length=8)]
    """Document, table or measurement the number was taken from."""


def unit_is(unit: str) -> AfterValidator:
    """Return the validator of a `Quantity` that must be given in `unit`."""

    def check(found: Quantity) -> Quantity:
        if found.unit != unit:
            raise ValueError(f"unit is {found.unit!r}, expected {unit!r}")
        return found

    return AfterValidator(check)


def parse(section: type[Section], content: Any, where: str | Path) -> Section:
    """Return `content` as a checked `section`.

    Args:
        section: The model to check against.
        content: Plain data, as YAML or JSON gives it.
        where: File named in the error.

    Raises:
        UserError: One line with the file, and of every error the key, what was found and what is expected.
    """
    try:
        return section.model_validate(content)
    except ValidationError as error:
        raise SeveralError(where, _explain(section, error)) from None


def read_json(section: type[Section], path: Path, advice: str) -> Section:
    """Read, check and return one section from a JSON file of our own writing.

    Args:
        section: The model to check against.
        path: File to read.
        advice: What to do if it is missing or damaged, for the error.

    Raises:
        UserError: If the file is missing, is not whole JSON, or does not hold the section.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; {advice}") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"{path}: not whole JSON ({error}); {advice}") from None
    return parse(section, content, path)


def _explain(section: type[BaseModel], error: ValidationError) -> list[str]:
    """Return all errors of a section, unknown keys first."""
    errors = sorted(error.errors(), key=lambda found: found["type"] != "extra_forbidden")
    told: list[str] = []
    for num_told, found in enumerate(errors):
        if num_told == MOST_ERRORS or sum(len(line.partition(_KNOWN)[0]) for line in told) > MOST_LETTERS:
            return [*told, f"and {len(errors) - num_told} more"]
        # A misspelt key is both unknown and missing; the first of the two says what to do.
        is_hinted = found["type"] == "missing" and any(f"did you mean {found['loc'][-1]!r}" in line for line in told)
        line = _explain_one(section, found)
        if any(_KNOWN in before for before in told):  # all keys there are, named once
            line = line.partition(_KNOWN)[0]
        if not is_hinted and line not in told:
            told.append(line)
    return told


def _explain_one(section: type[BaseModel], error: "ErrorDetails") -> str:
    place = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        known = _keys_at(section, error["loc"][:-1])
        return f"unknown key '{place}'{nearest(str(error['loc'][-1]), known) if known else ''}"
    if error["type"] == "missing":
        return f"key '{place}' is missing"
    message = error["msg"].removeprefix("Value error, ")
    if error.get("ctx", {}).get("pattern") == NAME_PATTERN:
        message = NAME_EXPECTED
    found = error["input"]
    if error["type"] in ("tuple_type", "list_type") and isinstance(found, str | int | float):
        message = f"expected a list; write [{found if str(found).isprintable() else _short(found)}]"
    shown = f", found {_short(found)}" if isinstance(found, str | int | float | bool | datetime.date) else ""
    if error["type"] == "literal_error" and isinstance(found, str):
        hint = nearest(found, re.findall(r"'([^']*)'", error["ctx"]["expected"]))
        shown += hint if "did you mean" in hint else ""  # all others stand before it
    return f"{place + ': ' if place else ''}{message}{shown}"


def _short(found: str | int | float | datetime.date) -> str:
    text = repr(found)
    return text if len(text) <= 80 else f"{text[:60]}... of {len(text)} characters"


def _keys_at(section: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """Return the keys known at a place inside a section; empty where the place is not a plain nested section."""
    current: Any = section
    for part in loc:
        if isinstance(part, int):
            continue
        field = current.model_fields.get(part) if hasattr(current, "model_fields") else None
        if field is None:
            return []
        current = _section_in(field.annotation)
    return list(current.model_fields) if hasattr(current, "model_fields") else []


def _section_in(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in getattr(annotation, "__args__", ()):
        found = _section_in(inner)
        if found is not None:
            return found
    return None
