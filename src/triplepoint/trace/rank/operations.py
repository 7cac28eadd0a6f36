"""What a row of work does, as rows of the kernel table tell it apart; and its label in the accounts of time."""

from typing import NamedTuple

from triplepoint.trace.lanes import Label
from triplepoint.trace.taxonomy import Kernel


class Operation(NamedTuple):
    """What rows of the kernel table have in common."""

    kernel: Kernel
    group: str | None
    name: str

    @property
    def label(self) -> Label:
        """Return what its time counts as: by class where it computes, by kind otherwise."""
        category = self.kernel.category
        return Label(category, self.kernel.cls if category == "compute" else self.kernel.kind, self.group)


class Operations:
    """Distinct operations and their labels, numbered in order of appearance."""

    def __init__(self) -> None:
        self._operations: dict[Operation, int] = {}
        self._labels: dict[Label, int] = {}
        self.label_of: list[int] = []
        """Number of the label of every operation."""

    @property
    def known(self) -> list[Operation]:
        """Return the operations so far."""
        return list(self._operations)

    @property
    def labels(self) -> list[Label]:
        """Return the labels so far."""
        return list(self._labels)

    def number(self, operation: Operation) -> int:
        """Return the number of an operation, a new one if it was not known."""
        index = self._operations.setdefault(operation, len(self._operations))
        if index == len(self.label_of):
            self.label_of.append(self.label_number(operation.label))
        return index

    def label_number(self, label: Label) -> int:
        """Return the number of a label, a new one if it was not known."""
        return self._labels.setdefault(label, len(self._labels))

    def of_category(self, category: str) -> list[int]:
        """Return the numbers of the labels of a category."""
        return [index for label, index in self._labels.items() if label.category == category]
