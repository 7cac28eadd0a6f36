"""The report stage: one self-contained HTML page with the study, its machine, figures, tables and provenance."""

from triplepoint.report.page import write_report

__all__ = ["write_report"]
