"""Parser of GPU names as people write them: `NVIDIA H100 PCIe`, `A100-SXM4-40GB`, `GB200 NVL72`."""

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from triplepoint.config.gpu import GpuConfig
from triplepoint.errors import UserError, shown

_MEMORY = re.compile(r"(?<![\d.])(\d{1,6})\s*-?g(?:i?b)?\b(?!\s*(?:/s|ps))")
_MEMORY_TYPE = re.compile(r"(hbm\s?\d\s?e?|gddr\d)")
_LEAST_SIZE_RATIO, _MOST_SIZE_RATIO = 0.915, 1.04
"""Range of the memory size in a name over the driver's: names count in GiB, or include memory the GPU reserves."""

_LIKENESS_TO_LIST_VARIANTS = 0.6
"""Likeness of a name to a chip from which on an error lists the variants of that chip."""
_LIKENESS_TO_NAME_CHIP = 0.5
"""Likeness of a name to a chip from which on an error names the chip."""
_MOST_CHIPS_NAMED = 3
"""Chips that an error names at most."""

_FORM_PATTERNS = (
    ("superchip", r"superchip|grace"),
    ("nvl", r"nvl(?![0-9a-z])|\bnvl\s?[24]\b"),
    ("sxm", r"sxm\d?|dgx|hgx"),
    ("pcie", r"pcie|pci-e|pci express"),
    ("oam", r"\boam\b"),
)
"""Form factors and their words in names of GPUs."""
_CONTEXT_PATTERNS = (
    ("pcie", r"no nvlink|without nvlink|pcie only"),
    ("sxm", r"sxm|nvswitch|dgx|hgx|nvlink"),
)
"""Form factors and their words in the text around a name; the first match counts."""

_NO_LINK = re.compile(r"\b(?:no|not|non|without)[ -]+(?:nvlink|nvswitch)")
_CARD_LINK = re.compile(r"pci-?e\b|pci express")
_ADAPTER_LINK = re.compile(r"gen|nic|switch|host|hca|adapter|x16|\d\.0|pci-?e\s?\d")
"""Words next to PCIe where it is the link of a module or its adapters to the host, not the form factor."""
_GENERATION = re.compile(r"nvlink[- ]?v?([1-6])(?!\d)(?:\.0)?(?!\s*(?:x|[gt]b|gpu|node|nic|link|\d|\.\d))")
_CONTEXT_SIZE = re.compile(r"(?<![\d.])(\d{1,3})\s*-?gi?b\b(?!\s*(?:/s|ps))")
_CONTEXT_SIZE_WORDS = r"cards?|gpus?|version|variant|vram|hbm\d?e?|sxm\d?|pcie|nvidia|each|per|nvlink\d?|nvswitch|\d+x"
_CONTEXT_SIZE_WORDS_WITH_CHIP = r"with|of|memory|a|the"
"""Words allowed next to a memory size of the GPU: `40GB cards`, but not `40 GB of memory used` without its chip."""


class UnknownGpuError(UserError):
    """A name that is not that of a known GPU type."""


class AmbiguousGpuError(UserError):
    """A name that fits several GPU types, or that contradicts the text around it."""


def find_gpu(text: str, gpus: Mapping[str, GpuConfig], context: str = "") -> GpuConfig:
    """Return the GPU type that a name means, as `read_gpu` without the alternatives."""
    return read_gpu(text, gpus, context)[0]


def read_gpu(
    text: str, gpus: Mapping[str, GpuConfig], context: str = "", assumed: str = ""
) -> tuple[GpuConfig, tuple[str, ...]]:
    """Return the GPU type that a name means, and the names of the alternatives it could mean as well.

    Args:
        text: Name of a file in `config/gpus/`, or a chip with form factor, memory and power limit in any order, as far
            as they are stated.
        gpus: Known GPU types by name.
        context: Text about node, links and memory, which decides between variants where the name does not.
        assumed: Text about the usual node, which decides last.

    Raises:
        UnknownGpuError: If no GPU type fits; the error names the nearest.
        AmbiguousGpuError: If several fit; the error names them.
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
    variants = [gpu for gpu in gpus.values() if gpu.chip == chips[0]]
    fitting = variants
    for fits in _tests_of(low, chips[0]):
        fitting = [gpu for gpu in fitting if fits(gpu)]
    if not fitting:
        raise UnknownGpuError(f"gpu {shown(text)} is not known; known of {chips[0]} are {_listed(variants)}")
    for size in _sizes_in(context, chips[0]):
        fitting = [gpu for gpu in fitting if _has_size(size, gpu)] or fitting
    possible = fitting = _by_context(fitting, context.lower())
    fitting = _by_context(fitting, assumed.lower())
    if len(fitting) > 1 and len({gpu.form_factor for gpu in fitting}) == 1:
        fitting = [gpu for gpu in fitting if gpu.is_usual] or fitting
    if len(fitting) > 1:
        raise AmbiguousGpuError(f"gpu {shown(text)} could be {_listed(fitting)}; write which")
    return fitting[0], tuple(gpu.name for gpu in possible if gpu != fitting[0])


def check_beside(gpu: GpuConfig, gpus: Mapping[str, GpuConfig], interconnect: str, notes: str = "") -> None:
    """Check that text about a node does not contradict its GPU type in chip, form factor, link or memory.

    Args:
        gpu: The GPU type.
        gpus: Known GPU types by name.
        interconnect: Text about the node and its links.
        notes: Other text, used for memory sizes of the GPU only.

    Raises:
        AmbiguousGpuError: If they contradict each other; the error names both.
    """
    low, named = interconnect.lower(), f"{gpu.name} ({gpu.product})"
    chips = sorted({other.chip for other in gpus.values() if re.search(_chip_pattern(other.chip), low)})
    if chips and gpu.chip not in chips:
        raise AmbiguousGpuError(f"interconnect names {' and '.join(chips).upper()}, gpu is {named}; write one of them")
    for size in _sizes_in(f"{interconnect};{notes}", gpu.chip):
        if not _has_size(size, gpu):
            raise AmbiguousGpuError(f"{size / 1e9:.0f} GB stand beside it, gpu is {named}; write one of them")
    for link, is_present in _links_in(low):
        if is_present != _has_link(gpu, link):
            stated = link if is_present else f"no {link}"
            raise AmbiguousGpuError(
                f"interconnect says {stated}, gpu is {named} with {_link_name(gpu)}; write one of them"
            )
    generation = _GENERATION.search(low)
    if generation and gpu.scale_up_link.startswith("nvlink") and gpu.scale_up_link != f"nvlink{generation[1]}":
        stated = f"NVLink {generation[1]}"
        raise AmbiguousGpuError(f"interconnect says {stated}, gpu is {named} with {_link_name(gpu)}; write one of them")


def _links_in(low: str) -> Iterable[tuple[str, bool]]:
    """Yield each link inside a node that a lower-case text names, and whether it says that the node has it."""
    if _NO_LINK.search(low):
        yield "NVLink", False
    elif re.search(r"\b(?:sxm\d?|dgx|hgx|nvswitch)", low):
        yield "NVSwitch", True
    elif "nvlink" in low:
        yield "NVLink", True
    elif any(_CARD_LINK.search(part) and not _ADAPTER_LINK.search(part) for part in re.split(r"[;,+]", low)):
        yield "PCIe", True
    if re.search(r"xgmi|infinity fabric", low):
        yield "xGMI", True


def _has_link(gpu: GpuConfig, link: str) -> bool:
    """Return whether nodes of a GPU type have a link that `_links_in` yields."""
    is_card = gpu.form_factor in ("pcie", "nvl")
    has_bridges = "nvl" in gpu.scale_up_link
    return {
        "NVLink": has_bridges,
        "NVSwitch": has_bridges and not is_card,
        "PCIe": is_card,
        "xGMI": gpu.scale_up_link.startswith("xgmi"),
    }[link]


def _link_name(gpu: GpuConfig) -> str:
    """Return the scale-up link of a GPU type in words, such as `NVLink 4 and bridges`."""
    kind, _, bridges = gpu.scale_up_link.partition("-")
    for key, name in {"nvlink": "NVLink ", "xgmi": "xGMI ", "pcie": "PCIe "}.items():
        kind = kind.replace(key, name)
    return f"{kind} and bridges" if bridges else kind


def _sizes_in(context: str, chip: str) -> Iterable[float]:
    """Yield the memory sizes in a text that are those of the GPU, in byte; `40Gb` is a rate."""
    if not re.search(r"\dg|\d[ -]g", context, re.IGNORECASE):
        return
    for part in re.split(r"[;,+()|]", context):
        low = part.lower()
        rest, has_chip = re.sub(_chip_pattern(chip), " ", low), re.search(_chip_pattern(chip), low)
        words = _CONTEXT_SIZE_WORDS + ("|" + _CONTEXT_SIZE_WORDS_WITH_CHIP if has_chip else "")
        sizes = [] if re.search(r"\dGb|\d Gb", part) else _CONTEXT_SIZE.findall(rest)
        if not re.sub(rf"(?<![a-z0-9])(?:{words})(?![a-z0-9])", "", _CONTEXT_SIZE.sub(" ", rest)).strip(" .-/"):
            yield from (int(size) * 1e9 for size in sizes)


def is_named(text: str, gpu: GpuConfig) -> bool:
    """Return whether a name, such as the driver's, fits a GPU type: the chip matches and nothing contradicts it."""
    low = " ".join(text.lower().split())
    if low in gpu.also_called:
        return True
    is_chip = re.search(_chip_pattern(gpu.chip), low) is not None
    return is_chip and all(fits(gpu) for fits in _tests_of(low, gpu.chip))


def _chip_pattern(chip: str) -> str:
    """Return a pattern of a chip's name: alone, after a count (8x), or joined to its form factor."""
    return rf"(?:(?<![a-z0-9])|(?<=\dx)|(?<=dgx)|(?<=hgx)){chip}(?=$|[^a-z0-9]|sxm|pcie|nvl|oam|x\d)"


def _tests_of(low: str, chip: str) -> Iterable[Callable[[GpuConfig], bool]]:
    """Yield a test of a GPU type for each property that a name states besides the chip."""
    rest = re.sub(_chip_pattern(chip), " ", low)
    forms = {form for form, pattern in _FORM_PATTERNS if re.search(pattern, rest)}
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
    for size in _MEMORY.finditer(rest):
        yield partial(_has_size, int(size[1]) * 1e9)
    if watts := re.search(r"(?<![\d.])(\d{3,4})\s*w\b", rest):
        yield lambda gpu: gpu.package_power_limit.value == float(watts[1])


def _has_size(size: float, gpu: GpuConfig) -> bool:
    """Return whether a memory size in byte is about that of a device, or of a package, of a GPU type."""
    capacity = gpu.memory_capacity.value
    return any(_LEAST_SIZE_RATIO < size / (capacity * count) < _MOST_SIZE_RATIO for count in {1, gpu.gpus_per_package})


def _by_context(gpus: list[GpuConfig], context: str) -> list[GpuConfig]:
    """Return the GPU types with the form factor that a text names; all of them if none has it."""
    form = next((form for form, pattern in _CONTEXT_PATTERNS if re.search(pattern, context)), None)
    return [gpu for gpu in gpus if gpu.form_factor == form] or gpus


def _listed(gpus: Iterable[GpuConfig]) -> str:
    return " or ".join(f"{gpu.name} ({gpu.product})" for gpu in gpus)


def _nearest(low: str, gpus: Mapping[str, GpuConfig]) -> str:
    """Return a hint for an error: the GPU types of the nearest chip, or several chips if none is clearly nearest."""
    words = [_with_digits(word) for word in re.split(r"[^a-z0-9]+", low)]
    likeness = {
        gpu.chip: max((_likeness(word, gpu.chip) for word in words if word), default=0.0) for gpu in gpus.values()
    }
    chips = sorted(likeness, key=lambda chip: -likeness[chip])
    if not chips:
        return ""
    best, second = chips[0], chips[1] if len(chips) > 1 else chips[0]
    if likeness[best] > _LIKENESS_TO_LIST_VARIANTS and likeness[best] > likeness[second]:
        return f"; nearest known: {_listed(gpu for gpu in gpus.values() if gpu.chip == best)}"
    near = [chip.upper() for chip in chips[:_MOST_CHIPS_NAMED] if likeness[chip] > _LIKENESS_TO_NAME_CHIP]
    return (f"; nearest known: {', '.join(near)}" if near else "") + "; all are in config/gpus"


def _with_digits(word: str) -> str:
    """Return a word with the letters o, i and l replaced by the digits they were typed for: H1OO is h100."""
    if not re.search(r"\d", word):
        return word
    return word[0] + re.sub(r"[il]", "1", word[1:].replace("o", "0"))


def _likeness(word: str, chip: str) -> float:
    """Return the similarity of two names, 0-1, plus 0.01 for each letter of their common beginning."""
    return difflib.SequenceMatcher(None, word, chip).ratio() + 0.01 * len(os.path.commonprefix([word, chip]))
