"""What GPUs of all vendors have in common: how their library is opened, and what the node lacks as a whole."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from triplepoint.tables.telemetry import GPU_METRICS
from triplepoint.telemetry.sensor import Found

Driver = TypeVar("Driver")
Answers = TypeVar("Answers", bound=Hashable)


class DriverError(Exception):
    """What a vendor's library answers in place of success."""


@dataclass
class Gpu:
    """One GPU that can be sampled."""

    device: str
    handle: int
    facts: dict[str, Any] = field(default_factory=dict)
    """Identity, sources of its metrics, and what it alone lacks."""
    absent: dict[str, str] = field(default_factory=dict)
    """What it does not measure, with the reason."""


@dataclass(frozen=True)
class Vendor(Generic[Driver]):
    """How the GPUs of a vendor are found."""

    stack: str
    """What is to be installed."""
    name: str
    """The library's name in sentences."""
    library: str
    """Its file."""
    load: Callable[[], Driver]
    """Raises OSError without the library and DriverError where it cannot be used."""
    count: Callable[[Driver], int]
    add: Callable[[Driver, Found], Sequence[Gpu]]
    """Adds sensors and facts of all GPUs and returns those that can be sampled."""
    close: Callable[[Driver], None]


def open_vendor(vendor: Vendor[Driver]) -> Found:
    """Return the GPUs of this node; without a driver only reasons.

    Args:
        vendor: Whose.
    """
    try:
        driver = vendor.load()
        num = vendor.count(driver)
    except OSError:
        return nothing(f"no {vendor.stack} here: {vendor.library} is not found")
    except DriverError as error:
        return nothing(f"{vendor.name} cannot be used: {error}")
    found = Found(close=lambda: vendor.close(driver))
    gpus = vendor.add(driver, found)
    if gpus:
        found.absent = {name: why for name, why in gpus[0].absent.items() if all(name in gpu.absent for gpu in gpus)}
    else:
        reason = f"{vendor.name} can use none of {num} GPUs" if num else f"{vendor.name} finds no GPU"
        found.absent = dict.fromkeys(GPU_METRICS, reason)
    return found


def nothing(reason: str) -> Found:
    """Return no GPUs, and why."""
    return Found(absent=dict.fromkeys(GPU_METRICS, reason))


def alike(asked: Iterable[tuple[Gpu, Answers]]) -> dict[Answers, dict[str, int]]:
    """Return names and handles of GPUs by what they are asked.

    Args:
        asked: GPUs, each with what it answers.
    """
    found: dict[Answers, dict[str, int]] = {}
    for gpu, answers in asked:
        found.setdefault(answers, {})[gpu.device] = gpu.handle
    return found
