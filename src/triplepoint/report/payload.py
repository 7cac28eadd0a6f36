"""Data of a run's page: recordings as whole numbers, packed into a script that the page loads when it is looked at."""

import base64
import gzip
import json
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

LIMIT_BYTES = 4_500_000
"""Size a page's data may have; with text and libraries a page stays below 5 MB."""

Content = dict[str, Any]


def pack(content: Content) -> str:
    """Return the script that hands some data to its page; the same data give the same text.

    A page opened from a disk may load scripts, but may not read files. What a name holds cannot end the script, since
    base64 has no sign that could.
    """
    return f'triplepoint.receive("{compress(json.dumps(content, separators=(",", ":"), allow_nan=False))}");\n'


def compress(text: str) -> str:
    """Return a text as base64 of gzip, which browsers unpack; the same text gives the same bytes."""
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=6, mtime=0)).decode("ascii")


def unpack(script: str) -> Content:
    """Return the data in a script that `pack` made."""
    content: Content = json.loads(gzip.decompress(base64.b64decode(script.split('"')[1])))
    return content


def pack_largest(levels: Iterable[Callable[[], Content]], limit_bytes: int = LIMIT_BYTES) -> str:
    """Return the script of the first content that fits; where none does, that of the last.

    Args:
        levels: Make the content, the most detailed first.
        limit_bytes: Size the script may have.
    """
    script = ""
    for make in levels:
        script = pack(make())
        if len(script) <= limit_bytes:
            break
    return script


def steps_of(values: npt.NDArray) -> list[int]:
    """Return whole numbers as their first one and the distance from each to the next: these compress well."""
    whole = np.rint(values).astype(np.int64)
    distances: list[int] = np.diff(whole, prepend=0).tolist()
    return distances
