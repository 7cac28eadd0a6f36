"""Runs of a study as other tools have them: MLflow, Weights & Biases, Prometheus, Chakra."""

from triplepoint.exports.runs import ExportedRun, read_runs

__all__ = ["ExportedRun", "read_runs"]
