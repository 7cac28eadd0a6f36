"""For all tests."""

import os

# Launches of tests that run side by side wait for those of their own pytest only, and for nobody's real measurement.
os.environ["TRIPLEPOINT_MACHINE"] = f"triplepoint-tests-{os.getpid()}"
