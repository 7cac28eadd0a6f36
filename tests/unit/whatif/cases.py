"""Cases for tests of factors."""

from pathlib import Path
from typing import Any

from triplepoint.config.base import parse
from triplepoint.config.catalogue import Catalogue
from triplepoint.predictions import Configuration, request_of
from triplepoint.whatif.case import Case

CONFIG = Path("config")
LLAMA = {
    "model": "llama3-70b", "cluster": "h200x32", "global_batch_size": 64, "tp": 4, "pp": 4, "recompute": "full",
    "sequence_parallel": True, "data_parallel_sharding": "optim",
}  # fmt: skip
MIXTRAL = {
    "model": "mixtral-8x7b", "cluster": "h200x32", "global_batch_size": 64, "ep": 4, "pp": 2, "recompute": "full",
    "data_parallel_sharding": "optim",
}  # fmt: skip


def case_of(point: dict[str, Any]) -> Case:
    """Return the case of some settings."""
    request = request_of(parse(Configuration, point, "test"), "test", 1, Catalogue(CONFIG))
    return Case.of(request, CONFIG)
