"""Sizes of the fakes' structures equal those of the real bindings."""

import ctypes
import re

import pynvml
import pytest

from tests.fakes.build import NATIVE
from tests.fakes.node import fake_node
from tests.fakes.presets import mi250_node


def sizes(header):
    """Return binding and size of each structure whose size the C compiler checks."""
    checks = re.findall(r"^SAME_SIZE\(\w+, (\d+), (\w+)\);", (NATIVE / header).read_text(), re.MULTILINE)
    assert len(checks) > 10
    return [(binding, int(size)) for size, binding in checks]


@pytest.mark.parametrize(("binding", "size"), sizes("nvml.h"))
def test_nvml_structure(binding, size):
    assert ctypes.sizeof(getattr(pynvml, binding)) == size


def test_amdsmi_structures():
    with fake_node(mi250_node(1)):
        from amdsmi import amdsmi_wrapper
    for binding, size in sizes("amdsmi.h"):
        assert ctypes.sizeof(getattr(amdsmi_wrapper, binding)) == size, binding
