"""The report stage: one self-contained HTML page with the study, its machine, figures, tables and provenance."""

from triplepoint.report.page import STATUSES, write_report

__all__ = ["STATUSES", "write_report"]
