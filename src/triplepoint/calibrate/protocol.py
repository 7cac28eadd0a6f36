"""The protocol of a calibration: read measurements, fit, error on what was held out, write with standard deviations."""

from pathlib import Path
from typing import Any, Protocol, TypeVar

import yaml

from triplepoint.files import write_text

Measured = TypeVar("Measured")
Fitted = TypeVar("Fitted")


class Procedure(Protocol[Measured, Fitted]):
    """How one kind of constants is calibrated. The simulator reads the files it writes."""

    def read(self) -> Measured:
        """Return the measurements.

        Raises:
            UserError: If a file is missing, damaged or of something else.
        """

    def fit(self, measured: Measured) -> Fitted:
        """Return the constants with their standard deviations, and errors of measurements held out of the fit.

        Raises:
            UserError: If the measurements do not determine the constants.
        """

    def report(self, fitted: Fitted) -> list[str]:
        """Return lines on what was fitted and on the error of what was held out.

        Raises:
            UserError: If that error is so large that nothing should be written.
        """

    def files(self, fitted: Fitted) -> dict[Path, str]:
        """Return what to write, by path."""


def calibrate(procedure: Procedure[Measured, Fitted]) -> list[str]:
    """Run a procedure, write its files, each whole or not at all, and return its report.

    Raises:
        UserError: If the measurements cannot be read or used; nothing is written then.
    """
    fitted = procedure.fit(procedure.read())
    report = procedure.report(fitted)
    for path, text in procedure.files(fitted).items():
        write_text(path, text)
    return report


def to_yaml(content: dict[str, Any], *, width: int = 120, flow: bool | None = False) -> str:
    """Return the text of a configuration file, keys in the order given.

    Args:
        content: What to write.
        width: Longest line.
        flow: None writes innermost lists and mappings on one line each.
    """
    return str(yaml.safe_dump(content, sort_keys=False, width=width, allow_unicode=True, default_flow_style=flow))


def rounded(value: float, digits: int) -> float:
    """Return a number to so many significant digits."""
    return float(f"{value:.{digits}g}")
