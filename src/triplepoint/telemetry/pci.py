"""Where devices sit: the kernel's list of physical slots."""

from triplepoint.telemetry.kernel_files import read_text, sysfs


def slot_of(address: str | None) -> str | None:
    """Return the name of the physical slot of a PCI device, None where the kernel knows none.

    Args:
        address: Domain:bus:device.function; slots list the first three parts.
    """
    if address is None:
        return None
    for path in sorted(sysfs().glob("bus/pci/slots/*/address")):
        if read_text(path) == address.partition(".")[0]:
            return path.parent.name
    return None
