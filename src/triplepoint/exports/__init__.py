"""Export the runs of a study to other tools: MLflow, Weights & Biases, Prometheus, Chakra."""

from triplepoint.exports.runs import ExportedRun, read_runs

__all__ = ["ExportedRun", "read_runs"]
