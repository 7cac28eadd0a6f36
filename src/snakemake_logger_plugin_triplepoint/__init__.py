"""Snakemake's logger plugin `triplepoint`: a line for each stage in place of a paragraph for each job.

The name of the package is what Snakemake finds it by. `profiles/default` chooses it.
"""

from snakemake_logger_plugin_triplepoint.handler import LogHandler, LogHandlerSettings

__all__ = ["LogHandler", "LogHandlerSettings"]
