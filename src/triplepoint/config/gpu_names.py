"""Names of GPUs as people write them: `NVIDIA H100 PCIe`, `A100-SXM4-40GB`, `GB200 NVL72`."""

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from triplepoint.config.gpu import GpuConfig
from triplepoint.errors import UserError, shown

_MEMORY = re.compile(r"(?<![\d.])(\d{1,6})\s*-?g(?:i?b)?\b(?!\s*(?:/s|ps))")
_MEMORY_TYPE = re.compile(r"(hbm\s?\d\s?e?|gddr\d)")
_SMALLEST, _LARGEST = 0.915, 1.04
"""A memory size in a name over what the driver shows: sellers count in GiB, or round up what the GPU keeps back."""

_LEAST_ALIKE = 0.6
"""Likeness from which on a name is suggested."""

_FORMS = (
    ("superchip", r"superchip|grace"),
    ("nvl", r"nvl(?![0-9a-z])|\bnvl\s?[24]\b"),
    ("sxm", r"sxm\d?|dgx|hgx"),
    ("pcie", r"pcie|pci-e|pci express"),
    ("oam", r"\boam\b"),
)
"""Words of form factors in names of GPUs."""
_CONTEXT = (
    ("pcie", r"no nvlink|without nvlink|pcie only"),
    ("sxm", r"sxm|nvswitch|dgx|hgx|nvlink"),
)
"""Words around a name that tell its form factor; the first that is found counts."""


class UnknownGpuError(UserError):
    """A name of no GPU type that is known."""


class AmbiguousGpuError(UserError):
    """A name that several GPU types have."""


def find_gpu(text: str, gpus: Mapping[str, GpuConfig], context: str = "") -> GpuConfig:
    """Return the GPU type that a name means.

    Args:
        text: The name: of a file in `config/gpus/`, or the chip and whatever else is stated of form factor, memory and
            power limit, in any order.
        gpus: Known GPU types by name.
        context: What is said of its node and links, which may tell the form factor where the name does not.

    Raises:
        UnknownGpuError: If it is none of them; it names the nearest.
        AmbiguousGpuError: If it could be several; it names them.
    """
    if text.strip() in gpus:
        return gpus[text.strip()]
    low = " ".join(text.lower().replace("_", " ").split())
    if called := [gpu for gpu in gpus.values() if low in gpu.also_called]:
        return called[0]
    chips = sorted({gpu.chip for gpu in gpus.values() if re.search(_chip_pattern(gpu.chip), low)})
    if len(chips) > 1:
        raise AmbiguousGpuError(f"gpu {shown(text)} names {' and '.join(chips)}; write one of them")
    if not chips:
        raise UnknownGpuError(f"gpu {shown(text)} is not known{_nearest(low, gpus)}")
    if re.search(r"sxm", low) and re.search(r"pci-?e|pci express", low):
        raise AmbiguousGpuError(f"gpu {shown(text)} names a module (SXM) and a card (PCIe); write one of them")
    named = [gpu for gpu in gpus.values() if gpu.chip == chips[0]]
    kept = named
    for stated in _stated(low, chips[0]):
        kept = [gpu for gpu in kept if stated(gpu)]
    if not kept:
        raise UnknownGpuError(f"gpu {shown(text)} is not known; known of {chips[0]} are {_listed(named)}")
    kept = _by_context(kept, context.lower())
    if len(kept) > 1 and len({gpu.form_factor for gpu in kept}) == 1:
        kept = [gpu for gpu in kept if gpu.is_usual] or kept
    if len(kept) > 1:
        raise AmbiguousGpuError(f"gpu {shown(text)} could be {_listed(kept)}; write which")
    return kept[0]


def is_named(text: str, gpu: GpuConfig) -> bool:
    """Return whether a name, such as that of the driver, may be of a GPU type: nothing in it says otherwise."""
    low = " ".join(text.lower().split())
    if low in gpu.also_called:
        return True
    is_chip = re.search(_chip_pattern(gpu.chip), low) is not None
    return is_chip and all(stated(gpu) for stated in _stated(low, gpu.chip))


def _chip_pattern(chip: str) -> str:
    """Return where a chip's name stands: alone, after a count (8x), or joined to its form factor."""
    return rf"(?:(?<![a-z0-9])|(?<=\dx)|(?<=dgx)|(?<=hgx)){chip}(?=$|[^a-z0-9]|sxm|pcie|nvl|oam|x\d)"


def _stated(low: str, chip: str) -> Iterable[Callable[[GpuConfig], bool]]:
    """Yield a test for each thing that a name states besides the chip."""
    rest = re.sub(_chip_pattern(chip), " ", low)
    forms = {form for form, pattern in _FORMS if re.search(pattern, rest)}
    # A card with bridges is a PCIe card too, and HGX nodes hold modules whatever their maker calls them.
    forms = {"nvl"} if "nvl" in forms else forms
    if forms and chip[0] not in "vm" and not chip.startswith("g"):
        yield lambda gpu: gpu.form_factor in forms
    elif "pcie" in forms:
        yield lambda gpu: gpu.form_factor == "pcie"
    if kind := _MEMORY_TYPE.search(rest):
        yield lambda gpu: gpu.memory_type == re.sub(r"\s", "", kind[1])
    elif re.search(r"(?<![a-z0-9])3e(?![a-z0-9])", rest):
        yield lambda gpu: gpu.memory_type == "hbm3e"
    for found in _MEMORY.finditer(rest):
        yield partial(_is_near, int(found[1]) * 1e9)
    if watts := re.search(r"(?<![\d.])(\d{3,4})\s*w\b", rest):
        yield lambda gpu: gpu.package_power_limit.value == float(watts[1])


def _is_near(size: float, gpu: GpuConfig) -> bool:
    capacity = gpu.memory_capacity.value
    return any(_SMALLEST < size / (capacity * count) < _LARGEST for count in {1, gpu.gpus_per_package})


def _by_context(gpus: list[GpuConfig], context: str) -> list[GpuConfig]:
    form = next((form for form, pattern in _CONTEXT if re.search(pattern, context)), None)
    return [gpu for gpu in gpus if gpu.form_factor == form] or gpus


def _listed(gpus: Iterable[GpuConfig]) -> str:
    return " or ".join(f"{gpu.name} ({gpu.product})" for gpu in gpus)


def _nearest(low: str, gpus: Mapping[str, GpuConfig]) -> str:
    words = [word for word in re.split(r"[^a-z0-9]+", low) if re.search(r"\d", word)]
    alike = [(_likeness(word, gpu.chip), gpu.chip) for word in words for gpu in gpus.values()]
    best, chip = max(alike, default=(0.0, ""))
    if best < _LEAST_ALIKE:
        return f"; known are {', '.join(gpus)}"
    return f"; nearest known: {_listed(gpu for gpu in gpus.values() if gpu.chip == chip)}"


def _likeness(word: str, chip: str) -> float:
    """Return how alike two names are, more so if they begin alike."""
    return difflib.SequenceMatcher(None, word, chip).ratio() + 0.01 * len(os.path.commonprefix([word, chip]))
