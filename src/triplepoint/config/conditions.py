"""The conditions a cluster's GPUs work under; simulated runs heed them."""

import re
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from triplepoint.config.base import NAME_PATTERN, Strict

GPU_PATTERN = r"^node\d+\.gpu\d+$"
"""How a single GPU is named, both counted from 0."""

GpuName = Annotated[str, Field(pattern=GPU_PATTERN)]


class ConditionsConfig(Strict):
    """Room, cooling, limits and faults. As left out they are those that step times were calibrated under."""

    inlet_temp_c: Annotated[float, Field(ge=0, le=60)] = 24.0
    """Air or liquid at the inlet of every node; 18 to 37 degC were seen on public nodes. Unit: degC."""
    coolant: Literal["air", "liquid"] = "air"
    """What takes heat from the GPUs."""
    airflow: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None
    """Which GPUs stand behind which, a file in `config/heat/airflow/`; that of the chassis if not given."""
    power_limit_w: Annotated[float, Field(gt=0)] | None = None
    """Power limit of every GPU, from its power at rest to that of the GPU type, which it is if not given. Unit: W."""
    bad_contact: dict[GpuName, Annotated[float, Field(ge=1, le=20)]] = {}
    """Single GPUs that touch their heat sink badly: factor on the die's resistance, such as `node1.gpu6: 7`."""
    blocked_airflow: dict[GpuName, Annotated[float, Field(ge=0.05, le=1)]] = {}
    """Single GPUs that see only a share of their air, where they are cooled by air."""
    braked_nodes: list[Annotated[int, Field(ge=0)]] = []
    """Nodes whose power brake is pulled, as after the failure of a power supply."""

    @property
    def without_faults(self) -> Self:
        """The same room, cooling and limits, nothing broken."""
        return self.model_copy(update={"bad_contact": {}, "blocked_airflow": {}, "braked_nodes": []})

    @model_validator(mode="after")
    def _check_coolant(self) -> Self:
        if self.blocked_airflow and self.coolant != "air":
            raise ValueError(f"blocked_airflow needs coolant: air, found coolant: {self.coolant}")
        return self


USUAL = ConditionsConfig()
"""What step times were calibrated under."""


def place_of(gpu: str) -> tuple[int, int]:
    """Return node and GPU of a name such as node1.gpu3."""
    node, number = re.findall(r"\d+", gpu)
    return int(node), int(number)
