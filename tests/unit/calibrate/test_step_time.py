"""Constants of stacks and widths of intervals: by hand, and on published rows whose stack or GPU type was left out."""

import csv
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks.predict_accuracy import DATA, TABLES, judge_left_out, summarise
from tests.unit.simulate.jobs import gpt, gpu, job
from triplepoint.calibrate.step_cases import FACTORS, HOST_TIMES_S, Case, read_cases
from triplepoint.calibrate.step_time import added, fit
from triplepoint.simulate.calibration import LEAST_FACTOR, Calibration
from triplepoint.simulate.costs import Constants
from triplepoint.simulate.intervals import Uncertainty
from triplepoint.simulate.job import Job

CONFIG = Path("config")
SURE = Uncertainty(kernel_sigma=0.01, collective_sigma=0.01, compute_share=0.9)


def on(stack: str, name: str, architecture: str, hidden_size: int = 512) -> Job:
    """Return a job of a stack on a GPU type."""
    kind = gpu().model_copy(update={"name": name, "architecture": architecture})
    return job(gpt(name=f"gpt{hidden_size}", hidden_size=hidden_size), stack=stack, gpu=kind)


def case(name: str, job: Job, factor: float, host_s: float = 0.0) -> Case:
    """Return a row of 1 s of kernels that took `factor` s, and as much of the host's time as its launches."""
    launches = 5e3
    simulated = [[math.log(kernels + launches * host) for host in HOST_TIMES_S] for kernels in FACTORS]
    return Case(name, job, factor + launches * (host_s or Constants.host_s), np.array(simulated), SURE)


def rows(stack: str, gpu_name: str, architecture: str, factor: float, host_s: float = 0.0) -> list[Case]:
    """Return rows of models of three sizes."""
    jobs = [on(stack, gpu_name, architecture, hidden_size) for hidden_size in (256, 512, 1024)]
    return [case(f"{stack} {gpu_name} {one.model.name}", one, factor, host_s) for one in jobs]


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    """Two stacks on A100, where the second takes 1.2 times as long, and a third on H100."""
    cases = [
        *rows("Megatron-LM 2021", "a100", "Ampere", 1.0),
        *rows("llm-foundry", "a100", "Ampere", 1.2),
        *rows("Megatron-LM 2022", "a100", "Ampere", 1.0),
        *rows("NeMo dgxc v25.02", "h100", "Hopper", 1.3),
    ]
    return fit(cases, "by hand", CONFIG)


def test_usual_factors_and_ratios(calibration: Calibration) -> None:
    """Few rows leave usual factors near those of all GPU types, and ratios near 1; what is measured comes out."""
    usual = {one.gpu: one.factor for one in calibration.fitted.gpus}
    assert 1.0 < usual["a100"] < 1.1 < usual["h100"] < 1.3
    ratios = {one.stack: one.ratio for one in calibration.fitted.stacks}
    assert ratios["Megatron-LM 2021"] < 1.0 < ratios["llm-foundry"]
    assert usual["a100"] * ratios["llm-foundry"] == pytest.approx(1.2, rel=0.02)
    assert usual["h100"] * ratios["NeMo dgxc v25.02"] == pytest.approx(1.3, rel=0.02)


def test_a_stack_is_a_ratio_to_what_is_usual_on_the_gpu_type(calibration: Calibration) -> None:
    usual = {one.gpu: one.factor for one in calibration.fitted.gpus}
    there, here = (
        calibration.constants(on("llm-foundry", name, architecture)).factor
        for name, architecture in (("h100", "Hopper"), ("a100", "Ampere"))
    )
    assert there / here == pytest.approx(usual["h100"] / usual["a100"])


def test_what_was_not_measured_takes_what_is_nearest(calibration: Calibration) -> None:
    usual = {one.gpu: one.factor for one in calibration.fitted.gpus}
    known = calibration.constants(on("NeMo dgxc v25.02", "h100", "Hopper")).factor
    assert calibration.constants(on("NeMo dgxc v25.04", "h100", "Hopper")).factor == known
    assert calibration.constants(on("NeMo dgxc v25.02", "h20", "Hopper")).factor == known
    assert calibration.constants(on("nobody's", "h100", "Hopper")).factor == usual["h100"]
    of_all = math.sqrt(usual["h100"] * usual["a100"])
    assert calibration.constants(on("nobody's", "mi300x", "CDNA 3")).factor == pytest.approx(of_all)


@pytest.mark.parametrize(
    ("stack", "name", "architecture", "new"),
    [
        ("NeMo dgxc v25.02", "h100", "Hopper", []),
        ("NeMo dgxc v25.04", "h100", "Hopper", ["version"]),
        ("NeMo dgxc v25.02", "h20", "Hopper", ["stack_on_gpu"]),
        ("nobody's", "h100", "Hopper", ["stack"]),
        ("nobody's", "mi300x", "CDNA 3", ["gpu", "stack"]),
    ],
)
def test_what_was_not_measured_widens(
    calibration: Calibration, stack: str, name: str, architecture: str, new: list[str]
) -> None:
    job = on(stack, name, architecture)
    assert calibration.uncalibrated(job) == new
    known = calibration.scale(on("NeMo dgxc v25.02", "h100", "Hopper"), SURE)
    widths = [getattr(calibration.fitted.widths, one) for one in new]
    # What is new adds in squares; a job of a stack that is known stands where it stood.
    assert calibration.scale(job, SURE) >= math.hypot(0.0 if "stack" in new else known, *widths) * 0.999
    assert (calibration.scale(job, SURE) > known) == bool(new)


def test_tables_that_are_less_sure_widen(calibration: Calibration) -> None:
    job = on("NeMo dgxc v25.02", "h100", "Hopper")
    unsure = replace(SURE, kernel_sigma=0.2)
    assert calibration.scale(job, unsure) > math.hypot(calibration.scale(job, SURE), 0.15)


def test_the_host_is_fitted_where_it_is_what_takes_time() -> None:
    def row(stack: str, kernels_s: float, host_s: float) -> Case:
        """Return a row with 5,000 launches and `kernels_s` of kernels."""
        simulated = [[math.log(kernels_s * f + 5e3 * host) for host in HOST_TIMES_S] for f in FACTORS]
        one = on(stack, "a100", "Ampere", round(64 * kernels_s))
        return Case(f"{stack} {kernels_s}", one, kernels_s + 5e3 * host_s, np.array(simulated), SURE)

    # Of few rows no host's time is fitted.
    seconds = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
    stacks = {"Megatron-DeepSpeed": 60e-6, "llm-foundry": Constants.host_s}
    measured = [row(stack, kernels_s, host_s) for stack, host_s in stacks.items() for kernels_s in seconds]
    found = {one.stack: one for one in fit(measured, "by hand", CONFIG).fitted.stacks}
    assert found["Megatron-DeepSpeed"].host_s == pytest.approx(60e-6, rel=0.05)
    assert found["Megatron-DeepSpeed"].ratio == pytest.approx(1.0, abs=0.02)
    assert found["llm-foundry"].host_s is None


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> list[Case]:
    """Every third row of two tables: enough for thresholds, in a third of the time."""
    cases = []
    for name in TABLES[:2]:
        with (DATA / f"{name}.csv").open(newline="") as file:
            header, *rows = csv.reader(file)
        thinned = tmp_path_factory.mktemp("thinned") / f"{name}.csv"
        with thinned.open("w", newline="") as file:
            csv.writer(file).writerows([header, *rows[::3]])
        cases += read_cases(thinned, CONFIG)
    return cases


@pytest.mark.parametrize(
    ("key", "mape", "coverage"),
    [
        pytest.param(lambda case: case.job.software.name, 0.13, 0.85, id="stack"),
        pytest.param(lambda case: case.job.gpu.name, 0.20, 0.80, id="gpu"),
    ],
)
@pytest.mark.long
def test_rows_left_out(published: list[Case], key: Callable[[Case], str], mape: float, coverage: float) -> None:
    """Constants are of the other rows alone; thresholds are just above what is reached."""
    found = summarise(judge_left_out(published, key, Calibration.load(CONFIG)))
    assert found.mape <= mape and found.coverage >= coverage


def test_stacks_of_a_table_are_added_to_what_is_fitted(calibration: Calibration) -> None:
    """Rows of one's own change nothing but their own stack: it comes out, and its interval is that of few rows."""
    own = rows("my-trainer 1", "h100", "Hopper", 1.6)
    found = added(calibration, own, "mine")
    assert found.fitted.gpus == calibration.fitted.gpus and found.fitted.widths == calibration.fitted.widths
    assert found.fitted.num_rows == calibration.fitted.num_rows + len(own)
    others = {one.stack: one for one in found.fitted.stacks}
    assert {name: others[name] for name in (one.stack for one in calibration.fitted.stacks)} == {
        one.stack: one for one in calibration.fitted.stacks
    }
    job = on("my-trainer 1", "h100", "Hopper")
    usual = calibration.constants(job).factor
    assert usual < 1.4 < found.constants(job).factor < 1.61
    assert "stack" in calibration.uncalibrated(job) and found.uncalibrated(job) == []
    assert found.scale(job, SURE) < calibration.scale(job, SURE)


def test_an_unknown_name_is_no_kin_of_other_unknown_ones(calibration: Calibration) -> None:
    found = added(calibration, rows("my-trainer 1", "h100", "Hopper", 1.6), "mine")
    assert found.uncalibrated(on("your-trainer", "h100", "Hopper")) == ["stack"]
    assert found.constants(on("your-trainer", "h100", "Hopper")) == calibration.constants(on("x", "h100", "Hopper"))


def test_kernels_are_never_much_faster_than_tables(calibration: Calibration) -> None:
    fast = added(calibration, [row for _ in range(5) for row in rows("my-trainer 1", "a100", "Ampere", 0.6)], "mine")
    assert fast.constants(on("my-trainer 1", "a100", "Ampere")).factor == LEAST_FACTOR
