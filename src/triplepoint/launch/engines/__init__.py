"""The engines that train: one module each, found by name, imported only in the ranks.

An engine module has two functions:
    unsupported(point) -> str | None: why the engine cannot run the point; None if it can. Imports nothing heavy.
    train(point, context, recorder) -> dict: trains in one rank, and returns facts for the manifest.
"""

import importlib
from typing import Any, Protocol, cast

from triplepoint.config.point import Point
from triplepoint.errors import UserError
from triplepoint.launch.context import RankContext, StepRecorder

_MODULES = {name: f"triplepoint.launch.engines.{name}" for name in ("native", "megatron", "deepspeed")}


class Engine(Protocol):
    """What an engine module offers."""

    def unsupported(self, point: Point) -> str | None:
        """Return why the engine cannot run `point`, or None."""
        ...

    def train(self, point: Point, context: RankContext, recorder: StepRecorder) -> dict[str, Any]:
        """Train `point` in this rank and return facts for the manifest."""
        ...


def get_engine(name: str) -> Engine:
    """Return the engine called `name`.

    Raises:
        UserError: If this version has no such engine.
    """
    if name not in _MODULES:
        raise UserError(f"engine {name!r} is not in this version of triplepoint; engines here: {', '.join(_MODULES)}")
    return cast(Engine, importlib.import_module(_MODULES[name]))


def unsupported(point: Point) -> str | None:
    """Return why the point's engine cannot run it, or None; also None for an engine that is not here to ask."""
    return get_engine(point.engine).unsupported(point) if point.engine in _MODULES else None
