"""What can be saved of a damaged event: its time and name, wherever they can be told for certain."""

import re
from collections.abc import Iterator

import msgspec

_BORDER = re.compile(rb"(?<=\})\s*,?\s*(?=\{\s*\")")
_ENDS = rb"(?=\s*[,}\]\r\n])"
_WORD = re.compile(rb'"(ph|cat|ts|dur|pid|tid)"\s*:\s*("[^"\\\x00-\x1f]*"|[-+\w.]+)' + _ENDS)
_NUMBER = re.compile(rb'"(correlation|stream|bytes|External id)"\s*:\s*(-?\d+)' + _ENDS)
_NAME = re.compile(rb'"name"\s*:\s*"(.*?)"?\s*,\s*"(?:ph|cat|pid|tid|ts|dur|args|id|bp|s)"', re.DOTALL)
_COMM = re.compile(
    rb'"(Collective name|In msg nelems|Out msg nelems|Group size|dtype|Process Group Name|Process Group Description'
    rb'|Process Group Ranks)"\s*:\s*("[^"\\\x00-\x1f]*"|\d+)' + _ENDS
)
_NEEDED = {b"ph", b"cat", b"ts"}


def salvage(damaged: bytes) -> Iterator[bytes]:
    """Yield an event of whole JSON for every event in a damaged text that still has a phase, category and time.

    Args:
        damaged: Text of one damaged event, or of several.
    """
    for text in _BORDER.split(damaged):
        members = {key: _quoted(value) for key, value in _WORD.findall(text)}
        if not members.keys() >= _NEEDED:
            continue
        name = _NAME.search(text)
        if name:
            members[b"name"] = msgspec.json.encode(name[1].decode("utf-8", "backslashreplace"))
        members[b"args"] = _object(dict([*_NUMBER.findall(text), *_COMM.findall(text)]))
        yield _object(members)


def _quoted(value: bytes) -> bytes:
    """Return a value as JSON has it: a word stands in quotes, for it may be no number."""
    return value if value[:1] == b'"' else b'"' + value + b'"'


def _object(members: dict[bytes, bytes]) -> bytes:
    return b"{" + b",".join(b'"%s":%s' % member for member in members.items()) + b"}"
