"""Where devices sit: the kernel's list of physical slots, below a root that tests may replace."""

import os
from pathlib import Path

SYSFS_VARIABLE = "TRIPLEPOINT_SYSFS"


def sysfs() -> Path:
    """Return the root of sysfs: /sys, or what the environment names in its place."""
    return Path(os.environ.get(SYSFS_VARIABLE, "/sys"))


def slot_of(address: str | None) -> str | None:
    """Return the name of the physical slot of a PCI device, None where the kernel knows none.

    Args:
        address: Domain:bus:device.function; slots list the first three parts.
    """
    if address is None:
        return None
    for path in sorted(sysfs().glob("bus/pci/slots/*/address")):
        try:
            if path.read_text().strip() == address.partition(".")[0]:
                return path.parent.name
        except OSError:
            continue
    return None
