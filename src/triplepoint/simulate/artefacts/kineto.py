"""Text of a simulated rank's trace, in the format of PyTorch's profiler (Kineto).

The text of a pass is the same for every micro-batch except for its times. So it is made once, and the digits of times
and numbers are written into one copy per micro-batch, all at once. This needs time stamps with a constant number of
digits: the simulated clock starts at `EPOCH_NS`.
"""

import json
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from triplepoint.simulate.timeline.schedule import Int64

EPOCH_NS = 10**15
"""Start of the simulated clock: the first time with 16 digits in us, as all have for the next 104 days. Unit: ns since
1970."""

_TIME, _POINT = "0" * 13 + "." + "000", 13
_NUMBER, _NUMBER_DIGITS = "0" * 9, 9
FIRST_NUMBER = 10 ** (_NUMBER_DIGITS - 1)
"""Smallest correlation number."""
_WORD_DIGITS = 8
"""Digits that are written at once, so that `fill` takes two thirds of the time it takes digit by digit."""
_FOUR_DIGITS = np.array([f"{number:04d}" for number in range(10_000)], "S4").view("<u4").astype("<u8")
_DECIMALS = np.array([f".{ns:03d}" for ns in range(1000)], "S4").view("<u4")
"""Text of four digits, and of a point with three, as little-endian numbers."""

HOST = 1
"""Process and thread number of the host in a trace."""

_LAUNCH = (
    f'}}}},\n{{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":{HOST},"tid":{HOST},"ts":',
    ',"dur":0,"args":{"cbid":211,"correlation":',
    "}},\n",
)
"""Text of a launch: before its time, between its time and its number, and after its number."""


class KernelText(NamedTuple):
    """Text of a kernel and of the host call that launched it, with placeholders for times and correlation numbers.

    Attributes:
        text: The text.
        at: Positions in it of the start, the correlation number, the time of the launch and the number again.
    """

    text: str
    at: tuple[int, int, int, int]

    @classmethod
    def of(cls, name: str, stream: int, duration_ns: int, more: str = "") -> "KernelText":
        """Return the text of a kernel.

        Args:
            name: Name of the kernel.
            stream: Stream of the kernel.
            duration_ns: Duration.
            more: Further arguments as JSON members, with a comma at the end.
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
    """Text of some kernels and their launches, with placeholders for times and numbers that `fill` writes."""

    def __init__(self, texts: Sequence[KernelText], which: Int64, start_ns: Int64, launch_ns: Int64) -> None:
        """Concatenate the texts of some kernels.

        Args:
            texts: Distinct texts.
            which: Index of each kernel's text; shape (num_kernels,).
            start_ns: Starts, relative to the device time given to `fill`; same shape.
            launch_ns: Times of the launches, relative to the host time given to `fill`; same shape.
        """
        self.num_launched = len(which)
        self._text = "".join([texts[index].text for index in which.tolist()]).encode()
        length = np.array([len(kernel.text) for kernel in texts], dtype=np.int64)[which]
        positions = np.array([kernel.at for kernel in texts], dtype=np.int64).reshape(-1, 4)
        self._at = (np.cumsum(length) - length)[:, None] + positions[which]
        self._start, self._launch = start_ns, launch_ns

    @classmethod
    def of_one(cls, text: KernelText) -> "Template":
        """Return the template of one kernel, which starts and is launched at the times given to `fill`."""
        zero = np.zeros(1, dtype=np.int64)
        return cls([text], zero, zero, zero)

    def fill(self, device_ns: Int64, host_ns: Int64, first_number: int) -> memoryview:
        """Return copies of the text, one per pair of times.

        Args:
            device_ns: Times to which device times are relative; shape (num_copies,). Unit: ns since 1970.
            host_ns: Times to which host times are relative; same shape.
            first_number: Correlation number of the first copy's first kernel.
        """
        copies = np.tile(np.frombuffer(self._text, dtype=np.uint8), (len(device_ns), 1))
        if self.num_launched and len(device_ns):
            start, number, launch, launch_number = self._at.T
            _write_time(copies, device_ns[:, None] + self._start, start)
            _write_time(copies, host_ns[:, None] + self._launch, launch)
            first = first_number + self.num_launched * np.arange(len(device_ns))[:, None]
            numbers = first + np.arange(self.num_launched)
            for at in (number, launch_number):
                _write_number(copies, numbers, at, _NUMBER_DIGITS)
        return copies.reshape(-1).data


def annotation(name: str, start_ns: int, end_ns: int) -> bytes:
    """Return the text of an annotation on the host."""
    text = f'{{"ph":"X","cat":"user_annotation","name":"{name}","pid":{HOST},"tid":{HOST},"ts":{_us(start_ns)},'
    return f'{text}"dur":{_us(end_ns - start_ns)},"args":{{}}}},\n'.encode()


def document(metadata: dict[str, object], events: Sequence[bytes | memoryview]) -> bytes:
    """Return a whole trace: metadata first, then the events, each of which ends with a comma and a newline."""
    head = json.dumps({"schemaVersion": 1, **metadata, "displayTimeUnit": "ms", "baseTimeNanoseconds": 0})
    # All other events end with a comma, so one must follow them.
    last = b'{"ph":"i","s":"g","name":"simulated","pid":1,"tid":1,"ts":%s}\n]}\n' % _us(EPOCH_NS).encode()
    return b"".join((head.removesuffix("}").encode(), b',\n"traceEvents":[\n', *events, last))


def _us(time_ns: int) -> str:
    return f"{time_ns // 1000}.{time_ns % 1000:03d}"


def _write_time(copies: np.ndarray, time_ns: Int64, at: Int64) -> None:
    """Write times in us with three decimals into texts.

    Args:
        copies: Texts; shape (num_copies, length). Changed.
        time_ns: Times; shape (num_copies, num_places).
        at: Start of each time in the text; shape (num_places,).
    """
    time_us = time_ns // 1000
    _write_number(copies, time_us, at, _POINT)
    _write_words(copies, _DECIMALS[time_ns - time_us * 1000], at + _POINT)


def _write_number(copies: np.ndarray, values: Int64, at: Int64, num_digits: int) -> None:
    """Write decimal numbers of `num_digits` digits, 8 to 16, into texts: the first eight, then the last eight.

    Args:
        copies: Texts; shape (num_copies, length). Changed.
        values: Numbers; shape (num_copies, num_places).
        at: Start of each number in the text; shape (num_places,).
        num_digits: Digits of every number.
    """
    end = num_digits - _WORD_DIGITS
    _write_words(copies, _eight_digits(values // 10**end), at)
    _write_words(copies, _eight_digits(values - values // 10**_WORD_DIGITS * 10**_WORD_DIGITS), at + end)


def _eight_digits(values: Int64) -> npt.NDArray[np.uint64]:
    """Return the text of numbers below 1e8, with leading zeros, as words of eight bytes."""
    first = values // 10_000
    text: npt.NDArray[np.uint64] = _FOUR_DIGITS[first] | _FOUR_DIGITS[values - first * 10_000] << np.uint64(32)
    return text


def _write_words(copies: np.ndarray, words: np.ndarray, at: Int64) -> None:
    """Write words of several bytes into texts; shapes as in `_write_number`."""
    num_copies, length = copies.shape
    places = np.ndarray((num_copies, length - words.itemsize + 1), words.dtype, copies, strides=(length, 1))
    places[:, at] = words
