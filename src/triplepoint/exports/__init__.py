"""Runs of a study as other tools have them: MLflow, Weights & Biases, Prometheus."""

from triplepoint.exports.runs import ExportedRun, read_runs

__all__ = ["ExportedRun", "read_runs"]
