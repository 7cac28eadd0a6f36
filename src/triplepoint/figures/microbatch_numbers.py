"""What `microbatch_power` plots: its panels, and the numbers in them."""

from dataclasses import dataclass

from pandas import DataFrame

from triplepoint.figures import labels
from triplepoint.figures.scales import column_of


@dataclass(frozen=True)
class Panel:
    """One quantity of `numbers_of`, with its spread and the model's interval.

    `is_power`: why power is missing is its reason; `of_gpu`: only GPUs have it; `from_zero`: its axis begins there.
    """

    title: str
    column: str
    is_power: bool = False
    of_gpu: bool = False
    from_zero: bool = True


PANELS = (
    Panel("throughput (token/s per {rank})", "tokens_per_s_per_gpu"),
    Panel("{source} power{per} (W)", "power_w", is_power=True),
    Panel("highest power of any {device} (W)", "power_peak_w", is_power=True, of_gpu=True),
    Panel("GPU temperature (°C), ^ highest", "gpu_temp_c", of_gpu=True, from_zero=False),
    Panel("GPU clock (GHz)", "sm_clock_ghz", of_gpu=True, from_zero=False),
    Panel("{source} energy per token ({prefix}J)", "energy_per_token_j", is_power=True),
    Panel("{processor} utilisation (%)", "utilisation_percent"),
)

PLOTTED = [
    "group", "setting", "layout", "micro_batch_size", "run", "repeat", "origin", "status", "reason", "num_gpus",
    "tokens_per_s_per_gpu", "tokens_per_s_per_gpu_p10", "tokens_per_s_per_gpu_p90",
    "tokens_per_s_per_gpu_lo", "tokens_per_s_per_gpu_hi",
    "power_w", "power_p10_w", "power_p90_w", "power_lo_w", "power_hi_w",
    "power_peak_w", "power_peak_of", "power_of",
    "gpu_temp_c", "gpu_temp_p10_c", "gpu_temp_p90_c", "gpu_temp_max_c",
    "sm_clock_ghz", "sm_clock_p10_ghz", "sm_clock_p90_ghz",
    "energy_per_token_j", "energy_per_token_lo_j", "energy_per_token_hi_j", "power_absent",
    "utilisation_percent", "utilisation_p10_percent", "utilisation_p90_percent", "utilisation_of",
]  # fmt: skip


def swept(numbers: DataFrame) -> DataFrame:
    """Return the layouts that were tried at several micro-batch sizes; all of them if none was."""
    is_swept = numbers.groupby(["group", "layout"])["micro_batch_size"].transform("nunique") > 1
    return numbers[is_swept].reset_index(drop=True) if is_swept.any() else numbers


def numbers_of(found: DataFrame) -> DataFrame:
    """Return one group's plotted columns: GPU power where the group has GPUs, host power on cpu."""
    has_gpu = bool(found["gpu"].notna().any())
    source = "gpu" if has_gpu else "host"
    processor = "gpu" if found["gpu_utilisation"].notna().any() else "cpu"
    # Sensors of packages say nothing of one GPU, but a model does.
    is_shared = bool(found["gpu_power_peak_w"].isna().all() and found["package_power_peak_w"].notna().any())
    columns = {}
    for end in ("", "p10", "p90"):
        columns[column_of("utilisation_percent", end)] = found[column_of(f"{processor}_utilisation", end)] * 100
        columns[column_of("sm_clock_ghz", end)] = found[column_of("sm_clock_mhz", end)] / 1000
        power = "gpu_power_w" if has_gpu else "job_host_power_w"
        columns[column_of("power_w", end)] = found[column_of(power, end)]
    for end in ("lo", "hi"):
        columns[f"power_{end}_w"] = found[f"gpu_power_{end}_w"]
        columns[f"energy_per_token_{end}_j"] = found[f"gpu_energy_per_token_{end}_j"]
    return found.assign(
        setting=labels.setting_text(found.iloc[0], without=("micro_batch_size",)),
        energy_per_token_j=found[f"{source}_energy_per_token_j"],
        power_peak_w=found["package_power_peak_w"] if is_shared else found["gpu_power_peak_w"],
        power_peak_of="package" if is_shared else "GPU",
        power_of="GPU" if has_gpu else "host",
        utilisation_of=processor.upper(),
        **columns,
    )
