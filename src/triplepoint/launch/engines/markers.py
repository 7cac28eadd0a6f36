"""Names of phases in traces: what the parser reads steps, micro-batches and phases from."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch.profiler import record_function


def marker(name: str) -> AbstractContextManager[object]:
    """Return a context that is a span of that name in a trace, and costs nothing in a step that is not profiled."""
    return record_function(name) if torch.autograd._profiler_enabled() else nullcontext()
