"""Triplepoint: what a distributed LLM training run costs in time, power and heat, and why."""

from importlib import import_module

__version__ = "0.1.0"

MEASUREMENT_VERSION = 1
"""Raised whenever the way of measuring changes; part of every point, so what was measured before is launched again."""


def __getattr__(name: str) -> object:
    """Return what the library offers, imported where it is first asked for: commands start without it."""
    if name == "predict":
        return import_module("triplepoint.predictions").predict
    if name == "record":
        return import_module("triplepoint.recorded.in_loop").record
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
