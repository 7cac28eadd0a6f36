"""Settings of all tests."""

import gc
import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

# Launches wait for other launches of the same pytest only, not for other test runs or for real measurements.
os.environ["TRIPLEPOINT_MACHINE"] = f"triplepoint-tests-{os.getpid()}"
# Standard error is compared whole, and a busy machine takes longer than the second after which progress shows.
os.environ["TRIPLEPOINT_PROGRESS"] = "0"
# Tests share the cores, and the threads of a parallel loop wait for each other without giving theirs up.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The deadline of an example is wall time, which other tests that run at the same time would exceed.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")


def pytest_collection_finish() -> None:
    """Keep the collector of garbage from going through all modules and tests again and again."""
    gc.freeze()
    gc.set_threshold(50_000)


@pytest.fixture(autouse=True)
def _restore_module_finders() -> Iterator[None]:
    """Undo the hiding of pandas by commands, because the next test runs in the same process."""
    before = list(sys.meta_path)
    yield
    sys.meta_path[:] = before
