"""Text of a simulated rank's trace, in the format of PyTorch's profiler (Kineto).

The text of a pass is the same for every micro-batch except for its times. So it is made once, and the digits of times
and numbers are written into one copy per micro-batch, all at once. This needs time stamps with a constant number of
digits: the simulated clock starts at `EPOCH_NS`.
"""

import json

import numpy as np

from triplepoint.simulate.timeline.schedule import Int64

EPOCH_NS = 10**15
"""Start of the simulated clock: the first time with 16 digits in us, as all have for the next 104 days. Unit: ns since
1970."""

_TIME, _POINT = "0" * 13 + "." + "000", 13
_NUMBER, _NUMBER_DIGITS = "0" * 9, 9
FIRST_NUMBER = 10 ** (_NUMBER_DIGITS - 1)
"""Smallest correlation number."""

HOST = 1
"""Process and thread number of the host in a trace."""


class Template:
    """Text of some events, with placeholders for times and correlation numbers that `fill` writes."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._length = 0
        self._times: list[tuple[int, int, bool]] = []
        self._numbers: list[tuple[int, int]] = []
        self.num_launched = 0

    def add_kernel(
        self, name: str, stream: int, start_ns: int, duration_ns: int, launch_ns: int, more: str = ""
    ) -> None:
        """Add a kernel and the host call that launched it.

        Args:
            name: Name of the kernel.
            stream: Stream of the kernel.
            start_ns: Start, relative to the device time given to `fill`.
            duration_ns: Duration.
            launch_ns: Time of the call, relative to the host time given to `fill`.
            more: Further arguments as JSON members, with a comma at the end.
        """
        number = self.num_launched
        self.num_launched += 1
        self._text(f'{{"ph":"X","cat":"kernel","name":{json.dumps(name)},"pid":0,"tid":{stream},"ts":')
        self._time(start_ns, is_host=False)
        self._text(f',"dur":{_us(duration_ns)},"args":{{{more}"device":0,"context":1,"stream":{stream},"correlation":')
        self._number(number)
        self._text(f'}}}},\n{{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":{HOST},"tid":{HOST},"ts":')
        self._time(launch_ns, is_host=True)
        self._text(',"dur":0,"args":{"cbid":211,"correlation":')
        self._number(number)
        self._text("}},\n")

    def fill(self, device_ns: Int64, host_ns: Int64, first_number: int) -> bytes:
        """Return copies of the text, one per pair of times.

        Args:
            device_ns: Times to which device times are relative; shape (num_copies,). Unit: ns since 1970.
            host_ns: Times to which host times are relative; same shape.
            first_number: Correlation number of the first copy's first kernel.
        """
        copies = np.tile(np.frombuffer("".join(self._parts).encode(), dtype=np.uint8), (len(device_ns), 1))
        if self._times and len(device_ns):
            at, add, is_host = (np.array(part) for part in zip(*self._times, strict=True))
            _write_digits(copies, np.where(is_host, host_ns[:, None], device_ns[:, None]) + add, at, 16, _POINT)
            at, add = (np.array(part) for part in zip(*self._numbers, strict=True))
            first = first_number + self.num_launched * np.arange(len(device_ns))[:, None]
            _write_digits(copies, first + add, at, _NUMBER_DIGITS, _NUMBER_DIGITS)
        return copies.tobytes()

    def _text(self, text: str) -> None:
        self._parts.append(text)
        self._length += len(text)

    def _time(self, add_ns: int, *, is_host: bool) -> None:
        self._times.append((self._length, add_ns, is_host))
        self._text(_TIME)

    def _number(self, add: int) -> None:
        self._numbers.append((self._length, add))
        self._text(_NUMBER)


def annotation(name: str, start_ns: int, end_ns: int) -> bytes:
    """Return the text of an annotation on the host."""
    text = f'{{"ph":"X","cat":"user_annotation","name":"{name}","pid":{HOST},"tid":{HOST},"ts":{_us(start_ns)},'
    return f'{text}"dur":{_us(end_ns - start_ns)},"args":{{}}}},\n'.encode()


def document(metadata: dict[str, object], events: list[bytes]) -> bytes:
    """Return a whole trace: metadata first, then the events, each of which ends with a comma and a newline."""
    head = json.dumps({"schemaVersion": 1, **metadata, "displayTimeUnit": "ms", "baseTimeNanoseconds": 0})
    # All other events end with a comma, so one must follow them.
    last = b'{"ph":"i","s":"g","name":"simulated","pid":1,"tid":1,"ts":%s}\n]}\n' % _us(EPOCH_NS).encode()
    return b"".join((head.removesuffix("}").encode(), b',\n"traceEvents":[\n', *events, last))


def _us(time_ns: int) -> str:
    return f"{time_ns // 1000}.{time_ns % 1000:03d}"


def _write_digits(copies: np.ndarray, values: Int64, at: Int64, num_digits: int, point: int) -> None:
    """Write decimal numbers of `num_digits` digits into texts, with a decimal point after `point` digits.

    Args:
        copies: Texts; shape (num_copies, length). Changed.
        values: Numbers; shape (num_copies, num_places).
        at: Start of each number in the text; shape (num_places,).
        num_digits: Digits of every number.
        point: Digits before the point.
    """
    for digit in reversed(range(num_digits)):
        rest = values // 10
        copies[:, at + digit + (digit >= point)] = values - rest * 10 + ord("0")
        values = rest
