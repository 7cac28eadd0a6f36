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
"""Likeness from which on all variants of a chip are suggested."""
_LEAST_NAMED = 0.5
"""Likeness from which on a chip is named at all."""
_MOST_NAMED = 3
"""Chips that are named, the nearest ones, where a name is that of none."""

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

_NO_LINK = re.compile(r"\b(?:no|not|non|without)[ -]+(?:nvlink|nvswitch)")
_CARD_LINK = re.compile(r"pci-?e\b|pci express")
_OF_ADAPTERS = re.compile(r"gen|nic|switch|host|hca|adapter|x16|\d\.0|pci-?e\s?\d")
"""Beside PCIe: what joins a module, or its adapters, to the host."""
_GENERATION = re.compile(r"nvlink[- ]?v?([1-6])(?!\d)(?:\.0)?(?!\s*(?:x|[gt]b|gpu|node|nic|link|\d|\.\d))")
_SIZE_BESIDE = re.compile(r"(?<![\d.])(\d{1,3})\s*-?gi?b\b(?!\s*(?:/s|ps))")
_SIZE_WORDS = r"cards?|gpus?|version|variant|vram|hbm\d?e?|sxm\d?|pcie|nvidia|each|per|nvlink\d?|nvswitch|\d+x"
_BESIDE_CHIP = r"with|of|memory|a|the"
"""Words that may stand beside a memory size that is the GPU's: `40GB cards`, not `40 GB of memory used`."""


class UnknownGpuError(UserError):
    """A name of no GPU type that is known."""


class AmbiguousGpuError(UserError):
    """A name that several GPU types have, or that what stands around it contradicts."""


def find_gpu(text: str, gpus: Mapping[str, GpuConfig], context: str = "") -> GpuConfig:
    """Return the GPU type that a name means: as `read_gpu`, without the others."""
    return read_gpu(text, gpus, context)[0]


def read_gpu(
    text: str, gpus: Mapping[str, GpuConfig], context: str = "", assumed: str = ""
) -> tuple[GpuConfig, tuple[str, ...]]:
    """Return the GPU type that a name means, and the names of others that it could mean as well.

    Args:
        text: The name: of a file in `config/gpus/`, or the chip and whatever else is stated of form factor, memory and
            power limit, in any order.
        gpus: Known GPU types by name.
        context: What is said of its node, links and memory, which may tell its variant where the name does not.
        assumed: The same, of what is usual; it decides last.

    Raises:
        UnknownGpuError: If it is none of them; it names the nearest.
        AmbiguousGpuError: If it could be several; it names them.
    """
    if text.strip() in gpus:
        return gpus[text.strip()], ()
    low = " ".join(text.lower().replace("_", " ").split())
    if called := [gpu for gpu in gpus.values() if low in gpu.also_called]:
        return called[0], ()
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
    for size in _sizes_beside(context, chips[0]):
        kept = [gpu for gpu in kept if _is_near(size, gpu)] or kept
    could_be = kept = _by_context(kept, context.lower())
    kept = _by_context(kept, assumed.lower())
    if len(kept) > 1 and len({gpu.form_factor for gpu in kept}) == 1:
        kept = [gpu for gpu in kept if gpu.is_usual] or kept
    if len(kept) > 1:
        raise AmbiguousGpuError(f"gpu {shown(text)} could be {_listed(kept)}; write which")
    return kept[0], tuple(gpu.name for gpu in could_be if gpu != kept[0])


def check_beside(gpu: GpuConfig, gpus: Mapping[str, GpuConfig], interconnect: str, notes: str = "") -> None:
    """Refuse what is said beside a GPU type that it contradicts: another chip, form factor, link or memory.

    Args:
        gpu: The GPU type.
        gpus: Known GPU types by name.
        interconnect: What is said of its node and links.
        notes: What else is said, of which memory sizes count that are the GPU's.

    Raises:
        AmbiguousGpuError: If both cannot be; it names both.
    """
    low, named = interconnect.lower(), f"{gpu.name} ({gpu.product})"
    chips = sorted({other.chip for other in gpus.values() if re.search(_chip_pattern(other.chip), low)})
    if chips and gpu.chip not in chips:
        raise AmbiguousGpuError(f"interconnect names {' and '.join(chips).upper()}, gpu is {named}; write one of them")
    for size in _sizes_beside(f"{interconnect};{notes}", gpu.chip):
        if not _is_near(size, gpu):
            raise AmbiguousGpuError(f"{size / 1e9:.0f} GB stand beside it, gpu is {named}; write one of them")
    for links, is_there in _links_said(low):
        if is_there != _has_link(gpu, links):
            says = links if is_there else f"no {links}"
            raise AmbiguousGpuError(f"interconnect says {says}, gpu is {named} with {_link_of(gpu)}; write one of them")
    generation = _GENERATION.search(low)
    if generation and gpu.scale_up_link.startswith("nvlink") and gpu.scale_up_link != f"nvlink{generation[1]}":
        says = f"NVLink {generation[1]}"
        raise AmbiguousGpuError(f"interconnect says {says}, gpu is {named} with {_link_of(gpu)}; write one of them")


def _links_said(low: str) -> Iterable[tuple[str, bool]]:
    """Yield links inside a node that a text says are there, or not."""
    if _NO_LINK.search(low):
        yield "NVLink", False
    elif re.search(r"\b(?:sxm\d?|dgx|hgx|nvswitch)", low):
        yield "NVSwitch", True
    elif "nvlink" in low:
        yield "NVLink", True
    elif any(_CARD_LINK.search(part) and not _OF_ADAPTERS.search(part) for part in re.split(r"[;,+]", low)):
        yield "PCIe", True
    if re.search(r"xgmi|infinity fabric", low):
        yield "xGMI", True


def _has_link(gpu: GpuConfig, links: str) -> bool:
    is_card = gpu.form_factor in ("pcie", "nvl")
    has_bridges = "nvl" in gpu.scale_up_link
    return {
        "NVLink": has_bridges,
        "NVSwitch": has_bridges and not is_card,
        "PCIe": is_card,
        "xGMI": gpu.scale_up_link.startswith("xgmi"),
    }[links]


def _link_of(gpu: GpuConfig) -> str:
    kind, _, bridges = gpu.scale_up_link.partition("-")
    for key, name in {"nvlink": "NVLink ", "xgmi": "xGMI ", "pcie": "PCIe "}.items():
        kind = kind.replace(key, name)
    return f"{kind} and bridges" if bridges else kind


def _sizes_beside(context: str, chip: str) -> Iterable[float]:
    """Yield memory sizes around a name that are those of the GPU, in byte; `40Gb` is a rate."""
    if not re.search(r"\dg|\d[ -]g", context, re.IGNORECASE):
        return
    for part in re.split(r"[;,+()|]", context):
        low = part.lower()
        rest, has_chip = re.sub(_chip_pattern(chip), " ", low), re.search(_chip_pattern(chip), low)
        words = _SIZE_WORDS + ("|" + _BESIDE_CHIP if has_chip else "")
        sizes = [] if re.search(r"\dGb|\d Gb", part) else _SIZE_BESIDE.findall(rest)
        if not re.sub(rf"(?<![a-z0-9])(?:{words})(?![a-z0-9])", "", _SIZE_BESIDE.sub(" ", rest)).strip(" .-/"):
            yield from (int(size) * 1e9 for size in sizes)


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
    """Return the GPU types of the nearest chip, or the nearest chips where none is near."""
    words = [_with_digits(word) for word in re.split(r"[^a-z0-9]+", low)]
    chips = {gpu.chip: max((_likeness(word, gpu.chip) for word in words if word), default=0.0) for gpu in gpus.values()}
    order = sorted(chips, key=lambda chip: -chips[chip])
    if not order:
        return ""
    best, second = order[0], order[1] if len(order) > 1 else order[0]
    if chips[best] > _LEAST_ALIKE and chips[best] > chips[second]:
        return f"; nearest known: {_listed(gpu for gpu in gpus.values() if gpu.chip == best)}"
    near = [chip.upper() for chip in order[:_MOST_NAMED] if chips[chip] > _LEAST_NAMED]
    return (f"; nearest known: {', '.join(near)}" if near else "") + "; all are in config/gpus"


def _with_digits(word: str) -> str:
    """Return a word with letters that are taken for digits in their place: H1OO."""
    if not re.search(r"\d", word):
        return word
    return word[0] + re.sub(r"[il]", "1", word[1:].replace("o", "0"))


def _likeness(word: str, chip: str) -> float:
    """Return how alike two names are, more so if they begin alike."""
    return difflib.SequenceMatcher(None, word, chip).ratio() + 0.01 * len(os.path.commonprefix([word, chip]))
