"""What is kept of one rank beside its tables: a small JSON file."""

from pathlib import Path

import msgspec

from triplepoint.errors import UserError
from triplepoint.files import write_text
from triplepoint.trace.lanes import Label, Step

SUMMARY = "rank.json"
"""Name of the file in the rank's folder."""


class Account(msgspec.Struct, frozen=True):
    """Time of one label over all work of a rank. Unit: ns."""

    label: Label
    busy: int
    exposed: int


class RankSummary(msgspec.Struct, frozen=True):
    """One analysed trace.

    Attributes:
        path: File it was read from.
        rank: Global rank.
        is_device: Whether the work is a GPU's.
        span: Start of the first and end of the last work. Unit: ns since 1970, on the rank's clock.
        steps: Profiled steps, on the same clock.
        accounts: Time of every label, those of whole categories included; segments number them in this order.
        num_events: Events of the file, of whatever kind.
        num_gpu_events: Kernels, copies and fills; 0 where the work is the CPU's.
        num_damaged_events: Events without a usable time, or saved from damaged text.
        num_duplicate_events: GPU events left out because they are equal to another in everything.
        is_truncated: Whether the file ended early.
    """

    path: str
    rank: int
    is_device: bool
    span: tuple[int, int]
    steps: list[Step]
    accounts: list[Account]
    num_events: int
    num_gpu_events: int
    num_damaged_events: int
    num_duplicate_events: int
    is_truncated: bool

    def exposed(self, category: str) -> int:
        """Return the exposed time of a category. Unit: ns."""
        return self._all(category).exposed

    def busy(self, category: str) -> int:
        """Return the time a category was running. Unit: ns."""
        return self._all(category).busy

    def _all(self, category: str) -> Account:
        return next(one for one in self.accounts if one.label.category == category and one.label.kind == "all")


def write_summary(folder: Path, summary: RankSummary) -> None:
    """Write the summary of a rank into its folder."""
    write_text(folder / SUMMARY, msgspec.json.format(msgspec.json.encode(summary)).decode() + "\n")


def read_summary(folder: Path) -> RankSummary:
    """Return the summary in a rank's folder.

    Raises:
        UserError: If it is missing or damaged.
    """
    path = folder / SUMMARY
    try:
        return msgspec.json.decode(path.read_bytes(), type=RankSummary)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; parse the rank's trace first") from None
    except msgspec.MsgspecError as error:
        raise UserError(f"{path}: not the summary of a rank ({error}); delete {folder} and run again") from None
