"""Made-up results, built once for all tests of figures and report."""

from pathlib import Path

import pytest

from tests import synthetic_studies
from tests.synthetic import CONFIG, build
from triplepoint.aggregate import aggregate


@pytest.fixture(scope="session")
def studies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Results folders: a CPU smoke study, a 32-GPU one of 20 simulated points, one single point."""
    simulated = synthetic_studies.paper_h200("simulated")
    deep = [spec for spec in simulated if spec.model == "llama3-70b" and spec.layout.get("pp") in (8, 16)]
    llama = deep + [spec for spec in simulated if spec.model == "mixtral-8x7b"]
    found = {"smoke": synthetic_studies.cpu_smoke(), "paper": llama, "one": synthetic_studies.one_point()}
    folders = {}
    for name, specs in found.items():
        folders[name] = tmp_path_factory.mktemp(name)
        aggregate(build(folders[name], specs), folders[name], CONFIG)
    return folders
