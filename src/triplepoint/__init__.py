"""Triplepoint: what a distributed LLM training run costs in time, power and heat, and why."""

__version__ = "0.1.0"

MEASUREMENT_VERSION = 1
"""Raised whenever the way of measuring changes; part of every point, so what was measured before is launched again."""
