"""Steps of a sweep on functions of the C library."""

import ctypes
import time

import numpy as np
import pytest

from triplepoint.telemetry import _sweep
from triplepoint.telemetry.sensor import NOT_DONE, ONCE_PER_FLUSH, STEP, PerSlot, Step, Sweep, address_of, clock_step

LIBC = ctypes.CDLL(None)
MEMCPY, ABS = address_of(LIBC.memcpy), address_of(LIBC.abs)


def test_run_gives_each_slot_its_part_of_an_array() -> None:
    source, target = np.arange(12, dtype="i8").reshape(4, 3), np.zeros((4, 3), "i8")
    results = np.zeros(4, "i8")
    sweep = Sweep([Step(MEMCPY, (target, source, 16), results)])
    sweep.run(2)
    sweep.run(0)
    assert target.tolist() == [[0, 1, 0], [0, 0, 0], [6, 7, 0], [0, 0, 0]]
    assert results.tolist() == [target[0].ctypes.data, 0, target[2].ctypes.data, 0]


def test_run_follows_the_stride_of_a_column() -> None:
    results = np.zeros((3, 2), "i8")
    sweep = Sweep([Step(ABS, (7,), results[:, 1])])
    sweep.run(1)
    assert results.astype("i4").tolist() == [[0, 0], [0, 7], [0, 0]]


def test_run_takes_what_an_array_holds_as_the_argument() -> None:
    target, results = np.zeros(2, "i8"), np.zeros(2, "i8")
    sources = np.array([5, 9], "i8")
    pointers = np.array([sources.ctypes.data + 8, sources.ctypes.data], "u8")
    sweep = Sweep([Step(MEMCPY, (target, PerSlot(pointers), 8), results)])
    for slot in range(2):
        sweep.run(slot)
    assert target.tolist() == [9, 5]


@pytest.mark.parametrize(("every", "done"), [(1, [0, 1, 2, 3, 4]), (3, [0, 3]), (ONCE_PER_FLUSH, [0])])
def test_run_leaves_out_slots_that_are_not_the_steps(every: int, done: list[int]) -> None:
    results = np.zeros(5, "i8")
    sweep = Sweep([Step(ABS, (1,), results, every)])
    for slot in range(5):
        sweep.run(slot)
    assert results.astype("i4").tolist() == [1 if slot in done else NOT_DONE for slot in range(5)]


def test_run_does_steps_in_order_and_tells_the_time() -> None:
    times = np.zeros((1, 2), "i8")
    before = time.monotonic_ns()
    Sweep([clock_step(times[:, 0]), clock_step(times[:, 1])]).run(0)
    assert before <= times[0, 0] <= times[0, 1] <= time.monotonic_ns()


def test_run_of_no_steps_does_nothing() -> None:
    Sweep([]).run(0)


@pytest.mark.parametrize("size", [1, STEP.itemsize - 1, STEP.itemsize + 1])
def test_run_refuses_what_is_no_array_of_steps(size: int) -> None:
    with pytest.raises(ValueError, match=str(STEP.itemsize)):
        _sweep.run(bytes(size), 0)
