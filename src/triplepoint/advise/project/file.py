"""Files with projections, `config/projection/*.yaml`: a point, sizes and networks."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from triplepoint.advise.project.failures import Failures
from triplepoint.advise.project.network import Batch, Network, read_adapters
from triplepoint.advise.project.project import Question
from triplepoint.config.base import Strict, parse
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.cluster import Topology
from triplepoint.config.yaml_file import read, read_any
from triplepoint.predictions import Configuration, request_of


def _checked(text: str) -> str:
    """Return a text such as 8x400 unchanged. Raises `ValueError` for another form."""
    read_adapters(text)
    return text


class ProjectionFile(Strict):
    """What is projected."""

    question: Annotated[str, Field(min_length=8)]
    """What is asked."""
    point: dict[str, Any]
    """Settings of the point to start from."""
    gpus: tuple[Annotated[int, Field(gt=0)], ...] = ()
    """Sizes; those of `triplepoint project` if none is named."""
    adapters: tuple[Annotated[str, AfterValidator(_checked)], ...] = ()
    """Adapters of a node and Gb/s of each, such as 8x400, to compare; those of the cluster if none are named."""
    topology: Topology | None = None
    """What the switches are; as the cluster has it if not given."""
    oversubscription: Annotated[float, Field(ge=1, le=64)] | None = None
    """Bandwidth into a leaf switch, or a group, over that out of it; as the cluster has it if not given."""
    gpus_per_leaf: Annotated[int, Field(gt=0)] | None = None
    """GPUs of a leaf switch, or of a group; as the cluster has it if not given."""
    batch: Batch = "grown"
    """Whether the global batch grows with GPUs or stays."""
    num_draws: Annotated[int, Field(gt=0, le=10_000)] = 20
    """Draws of parts."""
    failures: Failures = Failures()
    """How often nodes fail, and what that costs."""


def is_projection(source: Path) -> bool:
    """Return whether a file is a projection: YAML with `point`. Raises `UserError` if it cannot be read."""
    content = read_any(source) if source.suffix in (".yaml", ".yml") else None
    return isinstance(content, dict) and "point" in content


def read_question(source: Path, config: Path) -> Question:
    """Return the question in a file. Raises `UserError` if it is invalid."""
    content = read(ProjectionFile, source)
    where = f"{source}: point"
    request = request_of(parse(Configuration, content.point, where), where, 1, Catalogue(config))
    usual = Network(content.topology, content.oversubscription, None, content.gpus_per_leaf)
    networks = tuple(replace(usual, adapters=read_adapters(text)) for text in content.adapters) or (usual,)
    return Question(request, content.gpus, networks, content.batch, content.num_draws, content.failures)
