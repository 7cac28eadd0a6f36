"""Names of result columns say what they are of, which statistic, and in which unit."""

import re

import pytest

from triplepoint.simulate.predict.prediction import COLUMNS as PREDICTED
from triplepoint.tables.results import RESULT_TABLES
from triplepoint.tables.schema import Column, column_of

UNITS = {
    "s": "s", "ns": "ns", "W": "w", "J": "j", "J/token": "j", "degC": "c", "MHz": "mhz", "Hz": "hz", "byte": "bytes",
    "byte/s": "bytes_per_s",
    "token/s": "", "FLOP/token": "", "nat": "", "sample/(s*MJ)": "", "1": "", "": "",
}  # fmt: skip
STATISTICS = {"p10", "p90", "min", "max", "peak", "lo", "hi", "sigma"}
WORDS_OF_TORCH = {"peak_memory_bytes", "reserved_memory_bytes"}
COLUMNS = [
    pytest.param(column, id=f"{table.name}.{column.name}")
    for table in RESULT_TABLES.values()
    if table.name != "telemetry_checks"
    for column in table.columns
    if column.type in ("int", "float")
]


@pytest.mark.parametrize("column", COLUMNS)
def test_name_ends_with_statistic_then_unit(column: Column) -> None:
    unit = UNITS[column.unit]
    assert column.name.endswith(f"_{unit}") or not unit
    quantity = column.name.removesuffix(f"_{unit}") if unit else column.name
    words = quantity.split("_")
    if words[-1] in ("lo", "hi") and words[-2] in ("max", "peak"):
        words = words[:-2]  # what the highest is known to
    if column.name not in WORDS_OF_TORCH:
        assert not STATISTICS & set(words[:-1]), "a statistic stands before the unit"


@pytest.mark.parametrize("column", COLUMNS)
def test_sums_over_gpus_or_hosts_say_so(column: Column) -> None:
    is_sum = bool(re.search(r"summed over|of all nodes", column.about))
    assert not is_sum or column.name.startswith("job_")


def test_a_statistic_has_the_name_of_its_quantity() -> None:
    names = {column.name for column in RESULT_TABLES["points"].columns}
    for quantity in ("step_time_s", "tokens_per_s", "job_gpu_power_w", "gpu_power_w", "gpu_energy_per_token_j"):
        assert {column_of(quantity, end) for end in ("", "p10", "p90", "lo", "hi")} <= names


def test_predict_and_points_share_names_of_one_meaning() -> None:
    names = {column.name for column in RESULT_TABLES["points"].columns}
    shared = {name for name in PREDICTED if name in names}
    assert shared >= {"step_time_s", "mfu", "gpu_power_w", "gpu_power_peak_w", "time_per_output_token_s"}
    others = set(PREDICTED) - names
    assert others == {
        "bubble_fraction", "bottleneck", "software", "memory_gib", "exposed_comm_per_output_token_s",
    }  # fmt: skip
