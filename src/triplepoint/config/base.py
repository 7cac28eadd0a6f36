"""Base classes of configuration sections: strict pydantic models with one-line errors, and declarations of settings."""

import datetime
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

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
from triplepoint.files import load_json

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Row = Mapping[str, Any]
"""Values of all settings of a point by name: `point.settings_of`, or a row of table `points`."""

_MOST_KEYS = 8
"""Most keys of a section that an error lists."""

Text = str | Mapping[Any, str] | Callable[[Row], str]
"""How to write a value: a format pattern, a text for each value, or a function of the whole row. A pattern gets the
names of a list joined by dashes. Null, an empty list and a value without a text give an empty string."""


@dataclass(frozen=True)
class Need:
    """Precondition for a setting to have an effect.

    Attributes:
        is_met: Returns whether a point fulfils the condition.
        words: The condition in words, for messages.
    """

    is_met: Callable[[Any], bool]
    words: str


@dataclass(frozen=True)
class Setting:
    """Declaration of one setting of a point.

    The keys of studies (`Settings`), `docs/config.md`, the folding of points, digests, run ids, columns of tables and
    labels of figures all derive from it.

    Attributes:
        about: Description for users, including special values.
        unit: Unit of the value; `1` for a count, empty for text.
        label: Text in run ids and short labels: lower-case letters, digits, dots and dashes. None: no text.
        words: Text in long labels. None: same as `label`.
        usual: Value that run ids omit, or a function of the point that returns it. None: never omitted.
        fold: Function that returns the value to keep in a point: the default where the setting has no effect. None:
            the value is never changed.
        needs: Precondition for an effect, for example `task: lora`. Settings that only join ranks, and do nothing with
            one rank, have none.
        engines: Engines that support the setting; on the others it must be at its default. Empty: all engines.
        has_column: Whether table `points` has a column of this name.
        came_later: Whether digests omit the setting at its default, so that older points keep their digest.
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


def declared(section: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Setting]]:
    """Yield the name, with a prefix, and the declaration of each setting of a section, in the order of its fields."""
    for name, field in section.model_fields.items():
        for annotation in field.metadata:
            if isinstance(annotation, Setting):
                yield prefix + name, annotation


def write(name: str, text: Text | None, row: Row) -> str:
    """Return the text for the value of setting `name` in a row; empty if it has none."""
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
"""Pattern of names, which become parts of file names and run ids."""
NAME_EXPECTED = "expected at most 64 lower-case letters, digits, dots and dashes"

Size = Annotated[int, Field(gt=0, lt=2**31, strict=True)]
"""A count of sequences or tokens, or a width. Strict, because YAML reads `yes` as true and true would count as 1."""
Devices = Annotated[int, Field(gt=0, le=1_000_000, strict=True)]
"""A number of ranks or nodes, or a degree of parallelism. The limit is above any real cluster and can be listed."""
Layers = Annotated[int, Field(gt=0, le=10_000, strict=True)]
"""A number of layers or experts. The limit is low because code loops over them."""
StageLayers = Annotated[int, Field(ge=0, le=10_000, strict=True)]
"""Layers of a pipeline stage, which may be empty."""

_MOST_CHARACTERS = 200
"""Length of an error line, lists of known keys not counted, after which no further error is added."""
_KNOWN_KEYS = " (known: "
"""Start of the list of known keys in the hint of `nearest`."""


_EXPECTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "string_too_short": "at least {min_length} characters",
    "string_too_long": "at most {max_length} characters",
    "string_pattern_mismatch": "text of the form {pattern}",
    "greater_than": "more than {gt}",
    "greater_than_equal": "{ge} or more",
    "less_than": "less than {lt}",
    "less_than_equal": "{le} or less",
    "list_type": "a list",
    "tuple_type": "a list",
    "too_short": "at least {min_length} of them in the list, found {actual_length}",
    "too_long": "at most {max_length} of them in the list, found {actual_length}",
}
"""What is expected in place of a value, by pydantic's type of the error, with the names of its context in braces."""


class Strict(BaseModel):
    """A section of the configuration: unknown keys are an error and values are immutable.

    The string below a field is its description. `config/reference.py` reads it from the source; with pydantic's own
    option every start would parse the source of every section.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class Featured(Strict):
    """A section with keys added after its first release: at their default they are not written, so digests stay equal.

    Attributes:
        features: Keys omitted at their default, including the settings declared with `came_later`.
    """

    features: ClassVar[frozenset[str]] = frozenset()
    _omitted_at: ClassVar[dict[str, Any]] = {}

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Add the settings declared with `came_later` to `features`."""
        cls.features |= {name for name, setting in declared(cls) if setting.came_later}
        cls._omitted_at = {name: cls.model_fields[name].default for name in cls.features if name in cls.model_fields}

    @model_serializer(mode="wrap")
    def _write(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = write(self)
        for key, default in self._omitted_at.items():
            if key in written and getattr(self, key) == default:
                del written[key]
        return written


class Quantity(Strict):
    """A number with its unit and its source."""

    value: Annotated[float, Field(ge=0)]
    """The number, in `unit`."""
    unit: str
    """Unit of `value`, spelled as the key expects it."""
    source: Annotated[str, Field(min_length=8)]
    """Document, table or measurement the number was taken from."""


def unit_is(unit: str) -> AfterValidator:
    """Return a validator that accepts a `Quantity` in `unit` only."""

    def check(quantity: Quantity) -> Quantity:
        if quantity.unit != unit:
            raise ValueError(f"unit is {quantity.unit!r}, expected {unit!r}")
        return quantity

    return AfterValidator(check)


def parse(section: type[Section], content: Any, where: str | Path) -> Section:
    """Validate plain data and return it as a section.

    Args:
        section: The model to validate against.
        content: Plain data from YAML or JSON.
        where: File, for the error.

    Raises:
        UserError: In one line the file, and for every error the key, the value and the expected value.
    """
    try:
        return section.model_validate(content)
    except ValidationError as error:
        raise SeveralError(where, _explain(section, error)) from None


def read_json(section: type[Section], path: Path, advice: str) -> Section:
    """Read and validate a section from a JSON file that Triplepoint wrote.

    Args:
        section: The model to validate against.
        path: File to read.
        advice: Remedy for a missing or damaged file, for the error.

    Raises:
        UserError: If the file is missing, is not complete JSON, or does not match the section.
    """
    try:
        content = load_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; {advice}") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"{path}: not whole JSON ({error}); {advice}") from None
    return parse(section, content, path)


def _explain(section: type[BaseModel], error: ValidationError) -> list[str]:
    """Return the errors of a section as texts, unknown keys first; later ones are counted only."""
    errors = sorted(error.errors(), key=lambda details: details["type"] != "extra_forbidden")
    texts: list[str] = []
    for index, details in enumerate(errors):
        length = sum(len(text.partition(_KNOWN_KEYS)[0]) for text in texts)
        if index == MOST_ERRORS or length > _MOST_CHARACTERS:
            return [*texts, f"and {len(errors) - index} more"]
        # A misspelt key is both unknown and missing; the error of the unknown key already names the right one.
        is_hinted = details["type"] == "missing" and any(
            f"did you mean {details['loc'][-1]!r}" in text for text in texts
        )
        text = _explain_one(section, details)
        if any(_KNOWN_KEYS in earlier for earlier in texts):  # the known keys are listed once
            text = text.partition(_KNOWN_KEYS)[0]
        if not is_hinted and text not in texts:
            texts.append(text)
    return texts


def _explain_one(section: type[BaseModel], error: "ErrorDetails") -> str:
    """Return one validation error as text: key, problem, value."""
    place = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        known = _keys_at(section, error["loc"][:-1])
        return f"unknown key '{place}'{nearest(str(error['loc'][-1]), known) if known else ''}"
    if error["type"] == "missing":
        return f"key '{place}' is missing"
    context = error.get("ctx", {})
    message = error["msg"].removeprefix("Value error, ").replace("Input should be ", "expected ")
    if error["type"] in _EXPECTED:
        message = f"expected {_EXPECTED[error['type']].format(**context)}"
    if context.get("pattern") == NAME_PATTERN:
        message = NAME_EXPECTED
    if error["type"] in ("model_type", "dict_type"):
        keys = _keys_at(section, error["loc"])
        message = f"expected a mapping{' of the keys ' + ', '.join(keys) if 0 < len(keys) <= _MOST_KEYS else ''}"
    value = error["input"]
    if error["type"] in ("tuple_type", "list_type") and isinstance(value, str | int | float):
        message = f"expected a list; write [{value if str(value).isprintable() else _short(value)}]"
    shown = f", found {_short(value)}" if isinstance(value, str | int | float | bool | datetime.date) else ""
    if value is None:
        shown = ", found nothing"
    if error["type"] == "literal_error" and isinstance(value, str):
        hint = nearest(value, re.findall(r"'([^']*)'", error["ctx"]["expected"]))
        shown += hint if "did you mean" in hint else ""  # the message lists all allowed values already
    return f"{place + ': ' if place else ''}{message}{shown}"


def _short(value: str | int | float | datetime.date) -> str:
    """Return a value as an error shows it, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}... of {len(text)} characters"


def _keys_at(section: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """Return the known keys at a location inside a section; empty if that is not a plain nested section."""
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
    """Return the first section among a type and its type arguments; None if there is none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    sections = map(_section_in, getattr(annotation, "__args__", ()))
    return next((section for section in sections if section is not None), None)
