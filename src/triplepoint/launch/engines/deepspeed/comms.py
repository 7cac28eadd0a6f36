"""DeepSpeed's communication logger, switched on for one step.

It waits for the device around every message, so it is on in the last warm-up step only: neither what is timed nor what
is traced is changed by it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from deepspeed import comm
from deepspeed.comm.comm import comms_logger


class MessageLog:
    """What DeepSpeed sent in the logged step."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        """Operation, bytes of one message as DeepSpeed counts them, and their number; by operation and size."""

    @contextmanager
    def on(self) -> Iterator[None]:
        """Log what is sent inside."""
        comm.reset_log()
        comm.configure(enabled=True, prof_all=True, verbose=False)
        try:
            yield
        finally:
            comm.configure(enabled=False)
        self.messages = [
            {"op": op, "bytes": size, "count": entry[0]}
            for op, sizes in sorted(comms_logger.comms_dict.items())
            for size, entry in sorted(sizes.items())
        ]
