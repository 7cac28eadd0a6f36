"""What figures say of where their numbers are from: of the points they draw, and of no others."""

import re
from pathlib import Path

import pandas as pd
import pytest

from tests.unit.figures.test_figures import read, texts
from triplepoint import figures

CAPTIONS = Path(__file__).parents[3] / "workflow" / "report"


@pytest.fixture(scope="session")
def mixed(studies: dict[str, Path]) -> dict[str, pd.DataFrame]:
    """A measured study on this machine beside a simulated one, as after `make all`."""
    measured, simulated = read(studies["smoke"]), read(studies["paper"])
    return {name: pd.concat([measured[name], simulated[name]], ignore_index=True) for name in measured}


@pytest.mark.parametrize("name", ["thermal_heatmap", "throttling", "node_airflow"])
def test_stamp_of_simulated_gpus_beside_measured_runs_without(mixed: dict[str, pd.DataFrame], name: str) -> None:
    found = texts(figures.load(name).draw(mixed)[0])
    assert "SIMULATED" in found
    assert not any("MEASURED" in text for text in found)


def test_stamp_of_what_is_not_drawn(studies: dict[str, Path]) -> None:
    """A measured point at another setting than the one drawn is no part of the figure."""
    tables = read(studies["paper"])
    points = tables["points"]
    at = points.index[(points["micro_batch_size"] == 1) & (points["status"] == "ok")][0]
    other = points.loc[[at]].assign(run="other", origin="measured", micro_batch_size=64)
    tables["points"] = pd.concat([points, other], ignore_index=True)
    for name in ("parallelism_sweep", "microbatch_power"):
        figure, numbers = figures.load(name).draw(tables)
        assert "other" not in set(numbers["run"]), "the point is drawn"
        assert "SIMULATED" in texts(figure)


def test_stamp_of_both(studies: dict[str, Path]) -> None:
    tables = read(studies["paper"])
    points = tables["points"]
    drawn = figures.load("parallelism_sweep").draw(tables)[1]["run"]
    points.loc[points["run"] == drawn.iloc[0], "origin"] = "measured"
    assert "MEASURED + SIMULATED" in texts(figures.load("parallelism_sweep").draw(tables)[0])


def test_telemetry_validation_is_stamped_by_its_checks(mixed: dict[str, pd.DataFrame]) -> None:
    checks = mixed["telemetry_checks"]
    for origin, stamp in (("simulated", "SIMULATED"), ("measured", "MEASURED")):
        is_known = (checks["check"] == "integral_10s") & (checks["origin"] == origin)
        assert is_known.any()
        only = checks.assign(value=is_known.map({True: 0.01, False: float("nan")}))
        assert stamp in texts(figures.load("telemetry_validation").draw(mixed | {"telemetry_checks": only})[0])


@pytest.mark.parametrize("name", ["thermal_heatmap", "node_airflow"])
def test_quantity_a_simulation_has_not_was_not_simulated(studies: dict[str, Path], name: str) -> None:
    tables = read(studies["paper"])
    for table in ("points", "gpus"):
        heat = [column for column in tables[table] if "temp" in column]
        tables[table][heat] = float("nan")
    found = texts(figures.load(name).draw(tables)[0])
    assert any("not simulated" in text for text in found)
    assert not any("measured" in text.lower() for text in found)


@pytest.mark.parametrize("name", figures.NAMES)
def test_caption_calls_no_simulated_number_measured(name: str) -> None:
    """Captions stand below figures of either: measured steps are those without profiler, of simulated runs too."""
    caption = re.sub(r"measured\s+(steps|batches|time)", "", "\n".join(figures.text_of(name, CAPTIONS)).lower())
    assert "measured" not in caption or "simulated" in caption or name == "telemetry_validation"
