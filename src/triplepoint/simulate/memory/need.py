"""Memory of a rank in parts, against what there is."""

from dataclasses import dataclass, fields

from triplepoint.units import GIB


@dataclass(frozen=True, kw_only=True)
class Need:
    """What the rank that needs most needs; whoever inherits names the parts. Unit of all parts: byte.

    Attributes:
        stage: The pipeline stage it is.
        num_stages: How many there are.
        capacity: Of the GPU.
    """

    stage: int
    num_stages: int
    capacity: float

    @property
    def parts(self) -> dict[str, float]:
        """The parts by name, in their order."""
        known = {part.name for part in fields(Need)}
        return {part.name: getattr(self, part.name) for part in fields(self) if part.name not in known}

    @property
    def total(self) -> float:
        """All of it."""
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        """Whether the GPU has it."""
        return self.total <= self.capacity

    def explain(self) -> str:
        """Return the sum in one line, such as `weights 21.9 + ... = 118.8 GiB of 79.6 GiB (stage 0 of 4)`."""
        shown = " + ".join(f"{name} {value / GIB:.1f}" for name, value in self.parts.items())
        where = f" (stage {self.stage} of {self.num_stages})" if self.num_stages > 1 else ""
        return f"{shown} = {self.total / GIB:.1f} GiB of {self.capacity / GIB:.1f} GiB{where}"
