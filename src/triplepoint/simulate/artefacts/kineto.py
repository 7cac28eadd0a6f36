"""Text of a simulated rank's trace, as the profiler of PyTorch would write it.

A pass of one stage reads the same for every micro-batch but for its times, so its text is made once, and the digits of
times and numbers are written into as many copies as there are micro-batches, all at once. Every time stamp has the same
number of digits for that: the simulated clock starts at `EPOCH_NS`.
"""

import json
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from triplepoint.simulate.timeline.schedule import Int64

EPOCH_NS = 10**15
"""Start of the simulated clock: the first time of 16 digits, as all are for the next 104 days. Unit: ns since 1970."""

_TIME, _POINT, _TIME_DIGITS = "0" * 13 + "." + "000", 13, 16
_NUMBER, _NUMBER_DIGITS = "0" * 9, 9
FIRST_NUMBER = 10 ** (_NUMBER_DIGITS - 1)
"""Smallest correlation."""
_HALF_DIGITS = 8
"""Digits that are worked out together, of which a number has 32 bits: numpy divides these twice as fast."""

HOST = 1
"""Process and thread of the host in a trace."""

_LAUNCH = (
    f'}}}},\n{{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":{HOST},"tid":{HOST},"ts":',
    ',"dur":0,"args":{"cbid":211,"correlation":',
    "}},\n",
)
"""Text of a launch before its time, before its number, and after it."""


class KernelText(NamedTuple):
    """Text of work of the device and of the call that launched it, with room for two times and twice their number.

    Attributes:
        text: The text.
        at: Where the time of the work, its number, the time of the launch and its number begin.
    """

    text: str
    at: tuple[int, int, int, int]

    @classmethod
    def of(cls, name: str, stream: int, duration_ns: int, more: str = "") -> "KernelText":
        """Return the text of a kernel.

        Args:
            name: Its name.
            stream: It is on.
            duration_ns: Duration.
            more: Further arguments, JSON members with a comma at the end.
        """
        parts = (
            f'{{"ph":"X","cat":"kernel","name":{json.dumps(name)},"pid":0,"tid":{stream},"ts":',
            _TIME,
            f',"dur":{_us(duration_ns)},"args":{{{more}"device":0,"context":1,"stream":{stream},"correlation":',
            _NUMBER,
            _LAUNCH[0],
            _TIME,
            _LAUNCH[1],
            _NUMBER,
            _LAUNCH[2],
        )
        ends = list(accumulate(map(len, parts)))
        return cls("".join(parts), (ends[0], ends[2], ends[4], ends[6]))


class Template:
    """Text of some kernels and their launches, to be filled with times and numbers."""

    def __init__(self, texts: Sequence[KernelText], which: Int64, start_ns: Int64, launch_ns: Int64) -> None:
        """Put texts one after the other.

        Args:
            texts: Distinct texts.
            which: Of every kernel, its text; shape (num_kernels,).
            start_ns: Its start, from the time given for the device; same shape.
            launch_ns: Of its launch, from the time given for the host; same shape.
        """
        self.num_launched = len(which)
        self._text = "".join([texts[index].text for index in which.tolist()]).encode()
        length = np.array([len(one.text) for one in texts], dtype=np.int64)[which]
        self._at = (np.cumsum(length) - length)[:, None] + np.array([one.at for one in texts]).reshape(-1, 4)[which]
        self._start, self._launch = start_ns, launch_ns

    @classmethod
    def of_one(cls, text: KernelText) -> "Template":
        """Return the template of one kernel that starts, and is launched, at the times given."""
        nothing = np.zeros(1, dtype=np.int64)
        return cls([text], nothing, nothing, nothing)

    def fill(self, device_ns: Int64, host_ns: Int64, first_number: int) -> memoryview:
        """Return a copy of the text for each time.

        Args:
            device_ns: What times of the device count from; shape (num_copies,). Unit: ns since 1970.
            host_ns: What times of the host count from; same shape.
            first_number: Correlation of the first copy's first kernel.
        """
        copies = np.tile(np.frombuffer(self._text, dtype=np.uint8), (len(device_ns), 1))
        if self.num_launched and len(device_ns):
            start, number, launch, again = self._at.T
            _write_time(copies, device_ns[:, None] + self._start, start)
            _write_time(copies, host_ns[:, None] + self._launch, launch)
            first = first_number + self.num_launched * np.arange(len(device_ns))[:, None]
            numbers = (first + np.arange(self.num_launched)).astype(np.uint32)
            for at in (number, again):
                _write_digits(copies, numbers, at, _NUMBER_DIGITS)
        return copies.reshape(-1).data


def annotation(name: str, start_ns: int, end_ns: int) -> bytes:
    """Return the text of an annotation on the host."""
    text = f'{{"ph":"X","cat":"user_annotation","name":"{name}","pid":{HOST},"tid":{HOST},"ts":{_us(start_ns)},'
    return f'{text}"dur":{_us(end_ns - start_ns)},"args":{{}}}},\n'.encode()


def document(metadata: dict[str, object], events: Sequence[bytes | memoryview]) -> bytes:
    """Return a whole trace: metadata first, then the events, each of which ends with a comma and a new line."""
    head = json.dumps({"schemaVersion": 1, **metadata, "displayTimeUnit": "ms", "baseTimeNanoseconds": 0})
    # The event that all others end with a comma for.
    last = b'{"ph":"i","s":"g","name":"simulated","pid":1,"tid":1,"ts":%s}\n]}\n' % _us(EPOCH_NS).encode()
    return b"".join((head.removesuffix("}").encode(), b',\n"traceEvents":[\n', *events, last))


def _us(time_ns: int) -> str:
    return f"{time_ns // 1000}.{time_ns % 1000:03d}"


def _write_time(copies: np.ndarray, time_ns: Int64, at: Int64) -> None:
    """Write times in us with three decimals into texts; arguments as of `_write_digits`."""
    first, last = np.divmod(time_ns, 10**_HALF_DIGITS)
    before = _TIME_DIGITS - _HALF_DIGITS
    _write_digits(copies, first.astype(np.uint32), at, before)
    whole, rest = np.divmod(last.astype(np.uint32), np.uint32(10 ** (_TIME_DIGITS - _POINT)))
    _write_digits(copies, whole, at + before, _POINT - before)
    _write_digits(copies, rest, at + _POINT + 1, _TIME_DIGITS - _POINT)


def _write_digits(copies: np.ndarray, values: np.ndarray, at: Int64, num_digits: int) -> None:
    """Write decimal numbers of `num_digits` digits into texts.

    Args:
        copies: Shape (num_copies, length), changed.
        values: Of 32 bits; shape (num_copies, num_places).
        at: Where each number begins; shape (num_places,).
        num_digits: Digits of every number.
    """
    for digit in reversed(range(num_digits)):
        rest = values // np.uint32(10)
        copies[:, at + digit] = values - rest * np.uint32(10) + np.uint32(ord("0"))
        values = rest
