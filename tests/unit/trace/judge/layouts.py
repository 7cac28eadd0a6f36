"""The same trace as text in every layout a profiler or another tool writes, and where each event stands in it."""

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

Event = dict[str, Any]


class Text(NamedTuple):
    """A trace as text: bytes, and the first byte and the byte past the last of every event."""

    data: bytes
    spans: list[tuple[int, int]]


class Layout(NamedTuple):
    """How a text is put together: before the events, an event, between two, after the last."""

    head: Callable[[Event], str]
    event: Callable[[Event], str]
    between: str
    tail: Callable[[Event], str]

    def render(self, events: Sequence[Event], top: Event) -> Text:
        """Return the text of a trace.

        Args:
            events: The events.
            top: What stands beside them.
        """
        data = bytearray(self.head(top).encode())
        spans = []
        for number, event in enumerate(events):
            data += self.between.encode() if number else b""
            begin = len(data)
            data += self.event(event).encode()
            spans.append((begin, len(data)))
        return Text(bytes(data + self.tail(top).encode()), spans)


def _compact(event: Event) -> str:
    return json.dumps(event, separators=(",", ":"))


def _indented(event: Event) -> str:
    return json.dumps(event, indent=2).replace("\n", "\n    ")


def _sorted(event: Event) -> str:
    return json.dumps(event, sort_keys=True)


def _kineto_2024(event: Event) -> str:
    """Return an event as Kineto wrote it up to torch 2.12: three lines and the arguments in one."""
    if event["ph"] in ("s", "f"):
        return f"{{\n    {_flat(event)}\n  }}"
    when = {key: event[key] for key in ("ts", "dur") if key in event}
    first = {key: value for key, value in event.items() if key not in ("ts", "dur", "args")}
    return f"{{\n    {_flat(first)},\n    {_flat(when)}{_arguments(event)}\n  }}"


def _torch_213(event: Event) -> str:
    """Return an event as torch 2.13 writes it: a key a line, stray blank lines, a comma alone."""
    lines = ",\n".join(f"    {_flat({key: value})}" for key, value in event.items() if key != "args")
    return f"{{\n{lines}\n    {_arguments(event)}\n  }}"


def _arguments(event: Event) -> str:
    return f',\n    "args": {{\n      {_flat(event["args"])}\n    }}' if "args" in event else ""


def _flat(members: Event) -> str:
    return json.dumps(members)[1:-1]


LAYOUTS = {
    "compact": Layout(lambda top: '{"traceEvents":[', _compact, ",", lambda top: "]," + _flat(top) + "}"),
    "indented": Layout(
        lambda top: "{\n  " + _flat(top) + ',\n  "traceEvents": [\n    ',
        _indented,
        ",\n    ",
        lambda top: "\n  ]\n}\n",
    ),
    "sorted": Layout(
        lambda top: "{" + _flat(dict(sorted(top.items()))) + ", " + '"traceEvents": [',
        _sorted,
        ", ",
        lambda top: '], "traceName": "sorted.json"}',
    ),
    "kineto_2024": Layout(
        lambda top: (
            '{\n  "schemaVersion": 1,\n  "deviceProperties": [\n    {\n      "id": 0, "name": "GPU"\n    }\n  ],\n'
            '  "traceEvents": [\n  '
        ),
        _kineto_2024,
        ",\n  ",
        lambda top: '\n  ],\n  "traceName": "/tmp/t.json",\n  ' + _flat(top) + "\n}\n",
    ),
    "torch_2.13": Layout(
        lambda top: " {\n    " + _flat(top) + ',\n    "displayTimeUnit": "ms",\n    "traceEvents": [\n    \n  ',
        _torch_213,
        ",\n  ",
        lambda top: '\n  ],"traceName": "/tmp/t.json" }',
    ),
    "list": Layout(lambda top: "[\n", _compact, ",\n", lambda top: "\n]\n"),
}
"""Layouts by name; `list` has no place for what stands beside the events."""
