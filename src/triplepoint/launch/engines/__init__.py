"""The engines that train: one module each, found by name, imported only in the ranks.

An engine module has
    LIMITS: what the engine cannot do, as rules that `config.rules.refusal` asks. Importing it imports nothing heavy.
    train(point, context, recorder) -> dict: trains in one rank, and returns facts for the manifest.
"""

import importlib
from typing import Any, Protocol, cast

from triplepoint.config.point import Point
from triplepoint.config.rules import Rule
from triplepoint.errors import UserError
from triplepoint.launch.context import RankContext, StepRecorder

_MODULES = {name: f"triplepoint.launch.engines.{name}" for name in ("native", "megatron", "deepspeed")}


class Engine(Protocol):
    """Interface of an engine module."""

    LIMITS: tuple[Rule, ...]
    """What the engine cannot do."""

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
