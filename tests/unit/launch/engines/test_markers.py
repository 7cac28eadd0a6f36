"""Spans are in a trace where somebody traces, and nothing where nobody does."""

from contextlib import nullcontext

import torch
from torch.profiler import profile

from triplepoint.launch.engines.loop import marker


def test_a_marker_is_a_span_of_the_trace() -> None:
    with profile() as profiler, marker("forward stage=0 microbatch=3"):
        torch.ones(2).sum()
    (span,) = [event for event in profiler.events() if event.name == "forward stage=0 microbatch=3"]
    assert "aten::sum" in {child.name for child in span.cpu_children}


def test_a_marker_in_the_backward_of_a_profiled_step_is_a_span() -> None:
    weight = torch.ones(2, requires_grad=True)

    def hook(gradient: torch.Tensor) -> None:
        with marker("grad_sync"):
            gradient.sum()

    weight.register_hook(hook)
    with profile() as profiler:
        weight.sum().backward()
    assert "grad_sync" in {event.name for event in profiler.events()}


def test_a_marker_is_nothing_where_nobody_traces() -> None:
    assert isinstance(marker("optimizer"), nullcontext)
