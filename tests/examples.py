"""How many examples a property is tried on."""

import os

_SHARE = 0.3
_LEAST = 10


def examples(number: int) -> int:
    """Return the number of examples in a run of `make test-all`, and some of them in other runs, each of which draws
    its own.

    Args:
        number: The full number.
    """
    return number if os.environ.get("TRIPLEPOINT_ALL_EXAMPLES") else max(round(_SHARE * number), min(_LEAST, number))
