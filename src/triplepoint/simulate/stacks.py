"""Software stacks: `config/calibration/stacks.yaml`, what each does where a table of runs does not say."""

from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from triplepoint.config.base import NAME_PATTERN, Strict
from triplepoint.config.yaml_file import read


class Stack(Strict):
    """One software stack, all its versions."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    """Name of the stack."""
    match: list[str]
    """Words that must all stand in the framework's name, lower-case; none for the stack of everything else."""
    overlap: list[Literal["grad", "param", "tp"]]
    """Communication overlapped with computation where nothing else is said."""
    attention: str | None = None
    """Implementation of fused attention, where it is not the usual one of the GPU type."""
    attention_slowdown: Annotated[float, Field(gt=0)] = 1.0
    """Its time over that of the implementation the kernel tables have. Unit: 1."""
    expert_parallel: Annotated[int, Field(gt=0)] | None = None
    """Ranks that share experts out where a table says 1 or nothing, at most; None if 1 is meant. Unit: 1."""
    source: Annotated[str, Field(min_length=8)]
    """Where this is published."""


class Stacks(Strict):
    """All stacks, most special first."""

    stacks: list[Stack]
    """First hit wins."""


@lru_cache(maxsize=4)
def read_stacks(config: Path) -> tuple[Stack, ...]:
    """Return the stacks of a configuration folder. Raises `UserError` if the file is missing or wrong."""
    return tuple(read(Stacks, config / "calibration" / "stacks.yaml").stacks)


def find_stack(framework: str, config: Path) -> Stack:
    """Return the stack a framework's name belongs to."""
    low = framework.lower()
    return next(stack for stack in read_stacks(config) if all(word in low for word in stack.match))
