"""One read of all sensors of a lane: C functions called one after the other, without Python in between.

The sampler sleeps most of the time and wakes to a processor that works for others: what costs most is to bring code and
data back into the caches. Calling eight GPUs through ctypes, at 20 Hz, took a core three times as long as calling them
without the sleep (docs/methodology.md); this needs a tenth of the instructions and of the memory.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from triplepoint.telemetry import _sweep

CLOCK = _sweep.MONOTONIC_NS
"""Address of the function that tells the time. Unit: ns."""
PREAD = _sweep.PREAD
NOT_DONE = -1
"""Result of a step in a slot that is not its."""
RARELY = 1 << 32
"""`Step.every` of what is done in slot 0 only: once a second."""

_NUM_ARGUMENTS = 6
STEP = np.dtype(
    [
        ("function", "u8"),
        ("every", "u8"),
        ("by_value", "u8"),
        ("arguments", "u8", _NUM_ARGUMENTS),
        ("strides", "u8", _NUM_ARGUMENTS),
        ("result", "u8"),
        ("result_stride", "u8"),
    ]
)
"""A step as `_sweep` reads it."""


@dataclass(frozen=True)
class Value:
    """An argument that is, in each slot, what an array holds for it: a pointer to what a library made."""

    numbers: np.ndarray
    """Shape (num_slots,), type u8."""


@dataclass(frozen=True)
class Step:
    """One call of a C function with up to six whole numbers or pointers."""

    function: int
    """Its address."""
    arguments: tuple[int | np.ndarray | Value, ...]
    """A number goes as it is; of an array, whose first axis is the slots, the address of the slot's part."""
    results: np.ndarray
    """What it returns; of a function that returns an int only the lower half counts. Shape (num_slots,), type i8."""
    every: int = 1
    """It is done in slots that are multiples of this, and leaves `NOT_DONE` in the others."""


class DriverError(Exception):
    """A status other than success, of a vendor's library."""


def address_of(function: Any) -> int:
    """Return where a function of a ctypes library lies."""
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address


def tell_time(results: np.ndarray) -> Step:
    """Return the step that keeps the time at which it is done."""
    return Step(CLOCK, (), results)


class Sweep:
    """Steps done in order, once for each slot."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._kept = list(steps)  # whose arrays must not go away
        table = np.zeros(len(steps), STEP)
        for row, step in zip(table, steps, strict=True):
            row["function"], row["every"] = step.function, step.every
            row["result"], row["result_stride"] = step.results.ctypes.data, step.results.strides[0]
            for place, argument in enumerate(step.arguments):
                if isinstance(argument, Value):
                    row["by_value"] |= 1 << place
                    argument = argument.numbers
                row["arguments"][place], row["strides"][place] = _place(argument)
        # A view of plain bytes, made once: numpy would spell out the type of a step each time it is asked for one.
        self._table = table.view("u1").data

    def run(self, slot: int) -> None:
        """Do every step for one slot."""
        _sweep.run(self._table, slot)


def _place(argument: int | np.ndarray) -> tuple[int, int]:
    """Return an argument in slot 0 and what each further slot adds to it."""
    if isinstance(argument, np.ndarray):
        return argument.ctypes.data, argument.strides[0]
    return argument, 0
