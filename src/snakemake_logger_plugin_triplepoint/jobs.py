"""Snakemake's own text, a paragraph for each job, with long lists of files cut."""

import logging
from typing import Any, TextIO

from snakemake.logging import ColorizingTextHandler, DefaultFilter, DefaultFormatter

MOST_FILES = 4
"""Files of a list that are shown; the target of a plan of 300 runs has 3000, in a line of 170,000 characters."""
_LISTS = ("input", "output")
_MOST_REASON = 400
"""Longest reason that is shown. Unit: character."""


class _Short(DefaultFormatter):  # type: ignore[misc]
    """Snakemake's formatter, with long lists of files cut."""

    def format_job_info(self, msg: dict[str, Any]) -> str:
        """Return the paragraph of a job."""
        short: dict[str, Any] = {name: _cut(msg[name]) for name in _LISTS if msg.get(name)}
        reason = str(msg.get("reason") or "")
        if len(reason) > _MOST_REASON:
            short["reason"] = f"{reason[:_MOST_REASON]} ..."
        return str(super().format_job_info(msg | short))


def _cut(files: list[str]) -> list[str]:
    more = len(files) - MOST_FILES
    return files if more < 2 else [*files[:MOST_FILES], f"and {more} more"]


def jobs_handler(common: Any, stream: TextIO) -> logging.Handler:
    """Return a handler that writes as Snakemake does; with --verbose nothing is cut."""
    handler: logging.Handler = ColorizingTextHandler(nocolor=common.nocolor, stream=stream)
    handler.addFilter(
        DefaultFilter(common.quiet, common.debug_dag, common.verbose, common.dryrun, common.printshellcmds)
    )
    formatter = DefaultFormatter if common.verbose else _Short
    handler.setFormatter(formatter(common.quiet, common.show_failed_logs))
    return handler
