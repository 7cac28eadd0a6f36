"""Begin and end events (`ph` B and E) made whole: an end closes the latest begin of its thread that is still open."""

import numpy as np

from triplepoint.trace.kineto.rows import IS_BEGIN, IS_END, Rows


def pair(halves: Rows) -> tuple[Rows, int]:
    """Return whole rows and the number of halves without another.

    Args:
        halves: Rows of begins and ends, in the file's order.
    """
    open_begins: dict[int, list[int]] = {}
    begins: list[int] = []
    ends: list[int] = []
    order = np.argsort(halves["start"], kind="stable")
    num_unpaired = 0
    for index, thread, flags in zip(
        order.tolist(), halves["thread"][order].tolist(), halves["flags"][order].tolist(), strict=True
    ):
        waiting = open_begins.setdefault(thread, [])
        if flags & IS_BEGIN:
            waiting.append(index)
        elif waiting:
            begins.append(waiting.pop())
            ends.append(index)
        else:
            num_unpaired += 1
    whole = halves[begins]
    whole["duration"] = halves["start"][ends] - whole["start"]
    whole["flags"] &= ~np.uint8(IS_BEGIN | IS_END)
    return whole, num_unpaired + sum(map(len, open_begins.values()))
