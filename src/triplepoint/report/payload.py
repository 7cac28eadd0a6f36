"""Data of the page of a run: compressed into a script that the page loads when it is opened."""

import base64
import gzip
import json
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

LIMIT_BYTES = 4_500_000
"""Largest size of the data of a page; with text and libraries the page stays below 5 MB."""

Content = dict[str, Any]


def pack(content: Content) -> str:
    """Return a script that passes data to its page; the same data give the same script.

    Browsers let a page on disk load scripts but not read files. Names in the data cannot break the script, since base64
    has no quotes.
    """
    return f'triplepoint.receive("{compress(json.dumps(content, separators=(",", ":"), allow_nan=False))}");\n'


def compress(text: str) -> str:
    """Return a text compressed with gzip as base64; the same text gives the same result."""
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=6, mtime=0)).decode("ascii")


def unpack(script: str) -> Content:
    """Return the data in a script of `pack`."""
    content: Content = json.loads(gzip.decompress(base64.b64decode(script.split('"')[1])))
    return content


def pack_largest(levels: Iterable[Callable[[], Content]], limit_bytes: int = LIMIT_BYTES) -> str:
    """Return the script with the most detailed content that fits; the least detailed if none fits.

    Args:
        levels: Functions that return the content, the most detailed first.
        limit_bytes: Largest size of the script.
    """
    script = ""
    for make in levels:
        script = pack(make())
        if len(script) <= limit_bytes:
            break
    return script


def steps_of(values: npt.NDArray) -> list[int]:
    """Return the first value and the differences between neighbours, rounded to integers, which compress well."""
    integers = np.rint(values).astype(np.int64)
    differences: list[int] = np.diff(integers, prepend=0).tolist()
    return differences
