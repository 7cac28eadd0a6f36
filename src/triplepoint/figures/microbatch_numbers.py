"""What `microbatch_power` plots: its panels, and the numbers in them."""

from dataclasses import dataclass

from pandas import DataFrame

from triplepoint.figures import labels


@dataclass(frozen=True)
class Panel:
    """One quantity of `numbers_of`: spread in `_p10`, `_p90`, the model's interval in `_model_lo`, `_model_hi`.

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
    Panel("GPU temperature (°C), ^ highest", "temp_c", of_gpu=True, from_zero=False),
    Panel("GPU clock (GHz)", "clock_ghz", of_gpu=True, from_zero=False),
    Panel("{source} energy per token ({prefix}J)", "energy_per_token_j", is_power=True),
    Panel("{processor} utilisation (%)", "utilisation_percent"),
)

PLOTTED = [
    "group", "setting", "layout", "micro_batch_size", "run", "repeat", "origin", "status", "reason", "num_gpus",
    "tokens_per_s_per_gpu", "tokens_per_s_per_gpu_p10", "tokens_per_s_per_gpu_p90",
    "tokens_per_s_per_gpu_model_lo", "tokens_per_s_per_gpu_model_hi",
    "power_w", "power_w_p10", "power_w_p90", "power_w_model_lo", "power_w_model_hi",
    "power_peak_w", "power_peak_of", "power_of",
    "temp_c", "temp_c_p10", "temp_c_p90", "temp_c_max", "clock_ghz", "clock_ghz_p10", "clock_ghz_p90",
    "energy_per_token_j", "energy_per_token_j_model_lo", "energy_per_token_j_model_hi", "power_absent",
    "utilisation_percent", "utilisation_percent_p10", "utilisation_percent_p90", "utilisation_of",
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
    tokens_per_gpu = found["tokens_per_s_per_gpu"] * found["step_time_s"]
    share = found["num_gpus"] if has_gpu else 1
    # Sensors of packages say nothing of one GPU, but a model does.
    is_shared = bool(found["gpu_power_peak_w"].isna().all() and found["package_power_peak_w"].notna().any())
    spreads = {}
    for end in ("", "_p10", "_p90"):
        spreads[f"utilisation_percent{end}"] = found[f"{processor}_utilisation{end}"] * 100
    for end, name in (("", "power_w"), ("_p10", "power_p10_w"), ("_p90", "power_p90_w")):
        spreads[f"power_w{end}"] = found[f"{source}_{name}"] / share
    for end in ("lo", "hi"):
        other = "hi" if end == "lo" else "lo"
        spreads[f"tokens_per_s_per_gpu_model_{end}"] = tokens_per_gpu / found[f"step_time_{other}_s"]
        spreads[f"power_w_model_{end}"] = found[f"gpu_power_{end}_w"] / share
        joules = spreads[f"power_w_model_{end}"] * found[f"step_time_{end}_s"]
        spreads[f"energy_per_token_j_model_{end}"] = joules / tokens_per_gpu
    spreads |= {f"temp_c{end}": found[f"gpu_temp{end}_c"] for end in ("", "_p10", "_p90", "_max")}
    spreads |= {f"clock_ghz{end}": found[f"sm_clock{end}_mhz"] / 1000 for end in ("", "_p10", "_p90")}
    return found.assign(
        setting=labels.setting_text(found.iloc[0], without=("micro_batch_size",)),
        tokens_per_s_per_gpu_p10=tokens_per_gpu / found["step_time_p90_s"],
        tokens_per_s_per_gpu_p90=tokens_per_gpu / found["step_time_p10_s"],
        energy_per_token_j=found[f"{source}_energy_per_token_j"],
        power_peak_w=found["package_power_peak_w"] if is_shared else found["gpu_power_peak_w"],
        power_peak_of="package" if is_shared else "GPU",
        power_of="GPU" if has_gpu else "host",
        utilisation_of=processor.upper(),
        **spreads,
    )
