"""Result tables of a study: the output of the aggregate stage and the input of the figures."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from triplepoint.config.base import Setting, declared
from triplepoint.config.choices import ModelChoices
from triplepoint.config.point import Layout, Measured
from triplepoint.config.task import Inference, Lora
from triplepoint.status import RESULTS
from triplepoint.tables.claims import CLAIMS, PUBLISHED
from triplepoint.tables.parts import (
    BREAKDOWN,
    JOB_POWER,
    KERNEL_TOTALS,
    NODES,
    PHASES,
    SHARED,
    STEP_ENERGY,
    STEP_SAMPLES,
    TRAFFIC,
)
from triplepoint.tables.schema import Column, Table, amount, column_of, count, ratio, signed, text
from triplepoint.tables.traces import RANK, RUN, TIMELINE

TELEMETRY_CHECKS = Table(
    "telemetry_checks",
    "one row per (subject, check, what): median and spread, or why there is no value",
    (
        text("subject", "A run, or a file of `results/sensors/`."),
        text("origin", "measured or simulated."),
        text("check", "Check: a key of `triplepoint.aggregate.checks.CHECKS`."),
        text("what", "Sensor or training loop; null for runs.", True),
        text("unit", "Unit of the values, 1 for ratios."),
        signed("value", "Median; null where there is none."),
        signed("low", "10th percentile; for the overhead, lower end of the 95 % interval."),
        signed("high", "90th percentile; for the overhead, upper end of the 95 % interval."),
        signed("p99", "99th percentile of the magnitude."),
        signed("worst", "Largest magnitude."),
        count("num", "Number of values: windows, samples, nodes or pairs."),
        amount("of_total", "1", "Total that `num` is a part of, where there is one."),
        text("absent", "Why there is no value; null where there is.", True),
    ),
    null="There is no value; `absent` says why. A share has no spread.",
)


def _settings() -> Iterator[Column]:
    """Yield the column of each setting of a point that has one.

    Settings of a task are null for other tasks, and unknown settings of a recorded job are null.
    """
    for section, prefix in ((Layout, ""), (Measured, ""), (ModelChoices, ""), (Lora, "lora_"), (Inference, "")):
        for name, setting in declared(section, prefix):
            if setting.has_column:
                annotation = section.model_fields[name.removeprefix(prefix)].annotation
                yield _column(name, setting, annotation)


def _column(name: str, setting: Setting, annotation: Any) -> Column:
    """Return the column of a setting.

    Raises:
        TypeError: If there is no column for its type.
    """
    members = [member for member in get_args(annotation) if member is not NoneType]
    if len(members) < len(get_args(annotation)):
        annotation = members[0]
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) is tuple:
        if get_origin(get_args(annotation)[0]) is Literal:
            return Column(name, "names", setting.unit, setting.about, True)
        return text(name, setting.about, True)
    if annotation is int:
        return count(name, setting.about, True)
    if annotation is float:
        return Column(name, "float", setting.unit, setting.about, True)
    if annotation is bool:
        return Column(name, "bool", setting.unit, setting.about, True)
    if annotation is str or get_origin(annotation) is Literal:
        return text(name, setting.about, True)
    raise TypeError(f"setting {name}: no column for values of type {annotation}; set has_column=False")


_POINT = (
    RUN,
    Column("studies", "names", "", "Studies the run belongs to."),
    text("status", f"{', '.join(RESULTS[:-1])} or {RESULTS[-1]}."),
    text("reason", "Why not ok; null when ok.", True),
    text("origin", "measured or simulated."),
    text("model", "Model name."),
    text("cluster", "Cluster name."),
    text("gpu", "GPU type; null on cpu, and of a recorded run whose type is not known.", True),
    text("device_type", "Device of the ranks: cpu, cuda or rocm."),
    count("num_gpus", "World size; on cpu, processes."),
    count("num_microbatches", "Micro-batches per rank and step; null where the batch is not known.", True),
    *_settings(),
    count("repeat", "Repeat of the same measurement, from 1."),
    text("variant", "Difference from points with equal values in all these columns; null if there are none.", True),
)

SETTINGS_OF_POINT = tuple(
    column.name for column in _POINT if column.name not in ("run", "studies", "status", "reason", "origin")
)
"""Columns of table `points` that describe the configuration."""


def _percentiles(of: str) -> dict[str, str]:
    """Return the descriptions of 10th and 90th percentile columns."""
    return {f"p{percent}": f"{percent}th percentile {of}." for percent in (10, 90)}


_SAMPLES, _STEPS = _percentiles("over samples"), _percentiles("over measured steps")
_MODEL = {
    "lo": "Lower end of the model's 90 % interval; null unless simulated.",
    "hi": "Upper end of the model's 90 % interval; null unless simulated.",
}
_MODELLED = _STEPS | _MODEL
_BY_STEP_TIME = {
    "p10": "At the 90th percentile of the step time.",
    "p90": "At the 10th percentile of the step time.",
    "lo": "At the upper end of the model's 90 % interval of the step time.",
    "hi": "At the lower end of the model's 90 % interval of the step time.",
}
_ENERGY = {
    "p10": "At the 10th percentiles of power and of step time.",
    "p90": "At the 90th percentiles of power and of step time.",
    "lo": "At the lower ends of the model's intervals of power and step time; lo to hi covers more than 90 %.",
    "hi": "At the upper ends of the model's intervals of power and step time.",
}

_GPU_STATISTICS = {"step_time_s": _STEPS, "gpu_temp_c": _SAMPLES, "sm_clock_mhz": _SAMPLES}
"""Percentiles and interval ends of columns of `gpus`: their descriptions by column and statistic."""
_RUN_STATISTICS = _GPU_STATISTICS | {
    "needed_memory_bytes": {
        "lo": "Lower end of the model's 90 % interval, for launched runs too.",
        "hi": "Upper end of the model's 90 % interval, for launched runs too.",
    },
    "step_time_s": _MODELLED
    | {"hi": "Upper end of that interval: uncertainty of the model, not the spread of steps or repeats."},
    "time_to_first_token_s": _MODELLED,
    "time_per_output_token_s": _MODELLED,
    "tokens_per_s": _BY_STEP_TIME,
    "tokens_per_s_per_gpu": _BY_STEP_TIME,
    "job_gpu_power_w": _MODELLED,
    "gpu_power_w": _percentiles("of the sum over the number of GPUs") | _MODEL,
    "gpu_power_peak_w": _MODEL,
    "gpu_temp_c": _SAMPLES | _MODEL,
    "gpu_temp_max_c": _MODEL,
    "sm_clock_mhz": _SAMPLES | _MODEL,
    "gpu_energy_per_token_j": _ENERGY,
    "job_host_power_w": _STEPS,
    "cpu_utilisation": _SAMPLES,
    "gpu_utilisation": _SAMPLES,
}
"""Percentiles and interval ends of columns of `points`, likewise."""


def _with_statistics(columns: Iterable[Column], statistics: Mapping[str, Mapping[str, str]]) -> Iterator[Column]:
    """Yield columns, each followed by the columns of its percentiles and interval ends."""
    for column in columns:
        yield column
        for statistic, about in statistics.get(column.name, {}).items():
            yield replace(column, name=column_of(column.name, statistic), about=about)


_HEAT = (
    amount("gpu_temp_c", "degC", "Mean temperature over measured steps; null where not measured."),
    amount("gpu_temp_max_c", "degC", "Highest sample of the temperature."),
    amount("sm_clock_mhz", "MHz", "Mean clock of the compute units over measured steps; null where not measured."),
)

_BUSY = "measured: weighted by utilisation; simulated: of kernels whose time depends on the clock"
_CAUSES = (
    ratio(
        "power_cap_share",
        "Share of measured time in which the power limit throttled the clocks; null if not counted.",
    ),
    ratio("sync_boost_share", "Share of measured time in which clocks were throttled to match other GPUs."),
    ratio("sw_thermal_share", "Share of measured time in which the driver's thermal limit throttled the clocks."),
    ratio("hw_thermal_share", "Share of measured time in which the hardware throttled the clocks for heat."),
    ratio("power_brake_share", "Share of measured time in which an external power brake throttled the clocks."),
)
"""Throttling of a GPU, or its mean over the GPUs of a run. Several causes can throttle at the same time."""

_PEAK = "measured: highest sample of the sensor; simulated: the most that a window of 25 ms can show"
_PEAK_OF_GPU = "highest sample; null where GPUs share a sensor, and where simulated (`points` has that of the run)"

_RUN_COLUMNS = (
    *_POINT,
    count("num_measured_steps", "Measured steps that the numbers are from.", True),
    count("num_interrupted_steps", "Measured steps omitted because a rank stood still; null for none.", True),
    text(
        "step_notes",
        "Ranks that stood still, steps far longer than others, or that no step was seen; null for none.",
        True,
    ),
    amount("step_time_s", "s", "Median over measured steps of the slowest rank's step."),
    amount(
        "step_time_layout_sigma",
        "1",
        "Standard deviation of the log error of a simulated step time, without the part that all layouts of one "
        "training share; null unless simulated training.",
    ),
    amount(
        "time_to_first_token_s",
        "s",
        "Time until the last sequence of a batch has its first token, median; null in training.",
    ),
    amount("time_per_output_token_s", "s", "Time per token after the first, median; null in training."),
    amount("tokens_per_s", "token/s", "Tokens of the global batch (in inference, generated) over the step time."),
    amount("tokens_per_s_per_gpu", "token/s", "`tokens_per_s` per rank."),
    amount("flops_per_token", "FLOP/token", "Model FLOPs; formulas by task in `triplepoint/flops.py`."),
    ratio("mfu", "Model FLOP/s utilisation against the dense peak of the GPU; null on cpu."),
    Column("loss_first", "float", "nat", "Loss of the first step.", True),
    Column("loss_last", "float", "nat", "Loss of the last step.", True),
    amount("peak_memory_bytes", "byte", "Peak memory of the fullest rank: allocated on a GPU, resident on cpu."),
    amount("reserved_memory_bytes", "byte", "Peak memory that torch reserved on the fullest GPU; null on cpu."),
    amount("needed_memory_bytes", "byte", "Modelled need of the fullest rank, driver and fragmentation included."),
    amount("memory_capacity_bytes", "byte", "Memory of one GPU; null on cpu."),
    text("needed_memory_absent", "Why there is no modelled need; null where there is.", True),
    text("memory_undecided", "Need of a simulated run whose interval includes the capacity; else null.", True),
    amount("predicted_step_time_s", "s", "Predicted step time of a launched run; null if simulated."),
    amount("predicted_step_time_lo_s", "s", "Lower end of the prediction's 90 % interval."),
    amount("predicted_step_time_hi_s", "s", "Upper end of the prediction's 90 % interval."),
    Column("step_time_error", "float", "1", "Predicted over measured step time, less 1.", True),
    amount("predicted_memory_bytes", "byte", "Predicted peak of the allocator on the fullest rank."),
    Column("memory_error", "float", "1", "Predicted over measured peak of the fullest rank, less 1.", True),
    amount("predicted_gpu_power_w", "W", "Predicted mean power of a GPU; null where its type has no power model."),
    amount("predicted_gpu_power_lo_w", "W", "Lower end of the prediction's 90 % interval."),
    amount("predicted_gpu_power_hi_w", "W", "Upper end of the prediction's 90 % interval."),
    Column("gpu_power_error", "float", "1", "Predicted over measured mean power of a GPU, less 1.", True),
    amount(
        "predicted_gpu_temp_max_c",
        "degC",
        "Predicted highest temperature of the hottest GPU; null where its type has no power model.",
    ),
    amount("predicted_gpu_temp_max_lo_c", "degC", "Lower end of the prediction's 90 % interval."),
    amount("predicted_gpu_temp_max_hi_c", "degC", "Upper end of the prediction's 90 % interval."),
    Column("gpu_temp_error_c", "float", "degC", "Predicted less measured highest temperature, in K.", True),
    text("prediction_absent", "Why a launched run has no prediction; null where it has or is one.", True),
    amount("job_gpu_power_w", "W", "Mean power summed over GPUs, measured steps; null where not measured."),
    amount("gpu_power_w", "W", "Mean power of one GPU: `job_gpu_power_w` over the number of GPUs."),
    text("gpu_power_source", "Sensor of GPU power and energy; null where not measured.", True),
    amount(
        "gpu_power_peak_w", "W", f"Highest power of any GPU. {_PEAK[:1].upper()}{_PEAK[1:]}. Null for shared sensors."
    ),
    amount("gpu_power_limit_w", "W", "Power limit of a package over its GPUs, from `config/gpus/`; null on cpu."),
    amount(
        "gpu_throttle_temp_c",
        "degC",
        "Temperature from which the hardware slows down, from `config/gpus/`; null where not published.",
    ),
    amount("package_power_peak_w", "W", "Highest sample of a package whose GPUs share a sensor; null elsewhere."),
    *_HEAT,
    amount("sm_clock_busy_mhz", "MHz", f"Mean clock while kernels run, over GPUs ({_BUSY})."),
    ratio(
        "lost_to_power_limit_fraction",
        "Share of the step time lost to throttling by the power limit; null unless simulated.",
    ),
    ratio("lost_to_heat_fraction", "Share of the step time lost to throttling by heat; null unless simulated."),
    ratio("lost_to_brake_fraction", "Share of the step time lost to a power brake; null unless simulated."),
    ratio("throttle_fraction", "Share of measured time in which any cause throttled the clocks, mean over GPUs."),
    *_CAUSES,
    amount("gpu_energy_per_token_j", "J/token", "Energy of all GPUs per token; null where not measured."),
    amount("job_gpu_samples_per_s_mj", "sample/(s*MJ)", "Efficiency of the reference study, on GPU energy."),
    amount(
        "job_host_power_w",
        "W",
        "Mean CPU package and DRAM power of all nodes (RAPL), no GPUs; null where not measured.",
    ),
    amount("node_power_w", "W", "Mean power of a node at the plug over measured steps; null where one has no meter."),
    amount(
        "job_power_swing_fraction",
        "1",
        "Power of all nodes at the plug, 1st to 99th percentile over measured steps, over its mean; null of fewer than "
        "100 samples.",
    ),
    amount("job_power_line_hz", "Hz", "Frequency of the strongest line in the spectrum of that power."),
    amount("job_power_line_fraction", "1", "Amplitude of that line, half its range, over mean power."),
    amount("job_power_seen_hz", "Hz", "Highest frequency in that spectrum: half the sampling rate."),
    amount("host_energy_per_token_j", "J/token", "Energy of all hosts per token; null where not measured."),
    text("power_absent", "Why power (GPU power; host power on cpu) was not measured; null where it was.", True),
    ratio("cpu_utilisation", "Mean host CPU utilisation over measured steps."),
    ratio("gpu_utilisation", "Mean over GPUs of the share of time with a kernel running, measured steps."),
    amount("compute_s", "s", "Computation per profiled step, mean over traced ranks; null where not traced."),
    amount("exposed_comm_s", "s", "Communication of a profiled step while no computation ran on that rank."),
    amount("exposed_memory_s", "s", "Copies of a profiled step while nothing else ran on that rank."),
    amount("idle_s", "s", "Time of a profiled step with nothing running on that rank."),
    ratio("compute_share", "Computation over the sum of the four parts of a profiled step; null where not traced."),
    ratio("exposed_comm_share", "Exposed communication over that sum."),
    ratio("exposed_memory_share", "Exposed copies over that sum."),
    ratio("idle_share", "Idle time over that sum."),
    amount("kernel_sum_s", "s", "Summed kernel durations per profiled step, mean over traced ranks."),
    amount("kernel_sum_min_s", "s", "Summed kernel durations on the rank with the lowest sum."),
    amount("kernel_sum_max_s", "s", "Summed kernel durations on the rank with the highest sum."),
    text("host", "Hosts, comma separated; null if nothing ran.", True),
    text("git_commit", "Commit of the project that measured; null if unknown.", True),
    text("torch_version", "Version of torch; null if nothing ran.", True),
    text("stack", "Framework and version that a simulated run stands for; null if not simulated.", True),
)
POINTS = Table(
    "points",
    "one row per run, invalid points included",
    tuple(_with_statistics(_RUN_COLUMNS, _RUN_STATISTICS)),
    null="Settings: not used in this point. Numbers: the run did not finish, has no such quantity, or nothing measured "
    "it. Percentiles and interval ends (p10, p90, lo, hi): the number has none.",
)

_GPU_COLUMNS = (
    RUN,
    RANK,
    count("node", "Node index within the run."),
    text("host", "Host of the rank."),
    text("device", "Device of the rank: cpu, or gpu0, gpu1, ... on its host."),
    Column("slot", "int", "1", "Physical slot of the device; null where not known.", True, 0),
    count("stage", "Pipeline stage of the rank, from 0; null where the layout is not known.", True),
    text(
        "airflow", "Airflow of the node, a file in `config/heat/airflow/`; null where the chassis is not known.", True
    ),
    count("airflow_row", "Row of the GPU in the airflow, 0 at the inlet; null where the chassis is not known.", True),
    count("airflow_lane", "Index in that row, from 0; null where the chassis is not known.", True),
    text(
        "airflow_place",
        "front, middle or rear; null where the chassis is not known or no GPU is behind another.",
        True,
    ),
    text("uuid", "Identity of the device; null where it has none.", True),
    amount("step_time_s", "s", "Median over measured steps; null where a recording has none of this rank."),
    amount("peak_memory_bytes", "byte", "Peak memory: allocated on a GPU, resident on cpu."),
    amount("reserved_memory_bytes", "byte", "Peak memory that torch reserved on the GPU; null on cpu."),
    amount("predicted_memory_bytes", "byte", "Predicted peak of the allocator; null on cpu and where simulated."),
    Column("memory_error", "float", "1", "Predicted over measured peak, less 1.", True),
    amount("gpu_power_w", "W", f"Mean power over measured steps{SHARED}; null where not measured."),
    text("gpu_power_source", "Sensor of power and energy; null where not measured.", True),
    amount("gpu_power_peak_w", "W", f"Highest power: {_PEAK_OF_GPU}."),
    amount(
        "package_power_peak_w", "W", "Highest sample of the package, on its first GPU; null unless GPUs share a sensor."
    ),
    *_HEAT,
    amount("sm_clock_busy_mhz", "MHz", f"Mean clock while kernels run ({_BUSY})."),
    *_CAUSES,
)
GPUS = Table(
    "gpus",
    "one row per (run, rank) of runs that finished",
    tuple(_with_statistics(_GPU_COLUMNS, _GPU_STATISTICS)),
    null="Not measured.",
)

RUN_TIMELINE = Table("timeline", "one row per (run, drawn span)", (RUN, *TIMELINE.columns), TIMELINE.null)

_TABLES = (
    POINTS, GPUS, NODES, TRAFFIC, STEP_ENERGY, STEP_SAMPLES, JOB_POWER, PHASES, BREAKDOWN, KERNEL_TOTALS,
    TELEMETRY_CHECKS, PUBLISHED, CLAIMS, RUN_TIMELINE,
)  # fmt: skip
RESULT_TABLES = {table.name: table for table in _TABLES}
"""Tables in `results/tables/`, by name of the file without suffix."""
