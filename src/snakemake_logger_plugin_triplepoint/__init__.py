"""Snakemake logger plugin `triplepoint`: progress with one line per stage instead of a paragraph per job.

Snakemake finds the plugin by the name of this package. `profiles/default` selects it.
"""

from snakemake_logger_plugin_triplepoint.handler import LogHandler, LogHandlerSettings

__all__ = ["LogHandler", "LogHandlerSettings"]
