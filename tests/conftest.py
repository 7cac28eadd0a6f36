"""For all tests."""

import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

# Launches of tests that run side by side wait for those of their own pytest only, and for nobody's real measurement.
os.environ["TRIPLEPOINT_MACHINE"] = f"triplepoint-tests-{os.getpid()}"

# The deadline of an example is of wall time: beside other tests a property would fail for that.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")


@pytest.fixture(autouse=True)
def _modules_are_found_as_before() -> Iterator[None]:
    """Commands hide pandas from their process, which is that of the next test too."""
    before = list(sys.meta_path)
    yield
    sys.meta_path[:] = before
