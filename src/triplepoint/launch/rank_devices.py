"""Which GPU of its node a rank computes on, and in which physical slot that sits."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

Gpu = Mapping[str, Any]
"""What the sampler says of one GPU: `device`, `uuid`, `serial`, `pci_address`, `instances` (of MIG), ..."""


def devices_of_ranks(visible: Sequence[str] | None, gpus: Sequence[Gpu], num_ranks: int) -> tuple[list[str], list[str]]:
    """Return the GPU of each rank of a node, by the name the sampler gives it, and what could not be told.

    A rank takes the visible device of its place on the node. Variables such as CUDA_VISIBLE_DEVICES name devices in any
    order, by number, by UUID or by the beginning of one; a MIG instance is told by its own UUID or by its GPU's.
    Source: CUDA C++ Programming Guide, environment variables; ROCm documentation, "GPU isolation techniques".

    Args:
        visible: Devices the node was given, in order; None for all of them.
        gpus: The GPUs the sampler found; none where there is no recording.
        num_ranks: Ranks of the node.

    Returns:
        A name for each rank, and one line for each visible device that is none of `gpus`: its rank goes by what the
        variable says, rather than by the name of a GPU that may be another's.
    """
    if not visible:
        return [f"gpu{place}" for place in range(num_ranks)], []
    wanted = [visible[place % len(visible)] for place in range(num_ranks)]
    names = [_find(name, gpus) for name in wanted]
    lost = [name for name, found in zip(wanted, names, strict=True) if found is None]
    lines = [
        f"device {name} was given to this node and is none of the {len(gpus)} GPUs its sampler found; no telemetry "
        "of its rank"
        for name in dict.fromkeys(lost)
    ]
    return [found or name for name, found in zip(wanted, names, strict=True)], lines


def _find(name: str, gpus: Sequence[Gpu]) -> str | None:
    """Return the GPU that a variable names, None where that is no single one."""
    if name.isdigit():
        return f"gpu{int(name)}" if not gpus or any(gpu["device"] == f"gpu{int(name)}" for gpu in gpus) else None
    # MIG-GPU-<uuid>/<instance>/<instance> until driver 470, then MIG-<uuid of the instance>.
    identity = name.lower().removeprefix("mig-").removeprefix("gpu-").partition("/")[0]
    found = {gpu["device"] for gpu in gpus for known in _identities(gpu) if identity and known.startswith(identity)}
    return found.pop() if len(found) == 1 else None


def _identities(gpu: Gpu) -> list[str]:
    """Return all that a GPU is known by, without what vendors put in front."""
    # ROCm's "GPU-<16 digits>" are the serial number, which AMD SMI writes as 0x<16 digits>.
    known = [gpu.get("uuid"), gpu.get("serial"), *gpu.get("instances", ())]
    return [str(each).lower().removeprefix("mig-").removeprefix("gpu-").removeprefix("0x") for each in known if each]


def slots_of(
    gpus: Sequence[Gpu], configured: Mapping[str, int] | Sequence[int] | None
) -> tuple[dict[str, int], list[str]]:
    """Return the physical slot of each GPU of a node, where known, and what is wrong with the slots named.

    Args:
        gpus: The GPUs the sampler found.
        configured: `cluster.slots`; it comes before what the driver and the kernel say.

    Returns:
        Slots by the sampler's name for the GPU, and one line for each name that is no GPU here and each slot with two:
        those GPUs are left without a slot.
    """
    slots, lines = {gpu["device"]: slot for gpu in gpus if (slot := _slot(gpu)) is not None}, []
    if isinstance(configured, Mapping):
        for name, slot in configured.items():
            device = next((gpu["device"] for gpu in gpus if gpu.get("pci_address") == name.lower()), None)
            if device is None:
                lines.append(f"cluster.slots names {name}, where this node has no GPU; the others keep their slots")
            else:
                slots[device] = slot
    elif configured:
        slots |= {f"gpu{place}": slot for place, slot in enumerate(configured)}
    for slot, count in Counter(slots.values()).items():
        if count > 1:
            twice = [device for device in slots if slots[device] == slot]
            lines.append(f"slot {slot} is that of {' and '.join(twice)}; none of them is given one")
            slots = {device: other for device, other in slots.items() if other != slot}
    return slots, lines


def _slot(gpu: Gpu) -> int | None:
    # Boards with sockets for modules number those; elsewhere the kernel names the slot.
    slot = gpu.get("slot") if str(gpu.get("slot")).isdigit() else gpu.get("module")
    return None if slot is None else int(slot)
