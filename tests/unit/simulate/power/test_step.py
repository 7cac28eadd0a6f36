"""What runs in the control periods of a step: the pieces added up, with the energy they have."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.simulate.test_heated import CATALOGUE, CONFIG, planned
from triplepoint.simulate.artefacts.simulate_run import job_of
from triplepoint.simulate.calibration import Calibration
from triplepoint.simulate.power.load import Training
from triplepoint.simulate.power.step import Pieces, bin_activity
from triplepoint.simulate.power.work import UNITS
from triplepoint.simulate.step import simulate_step

DEEP = "gpt3-175b_h200x32_tp2-pp16-dp1-sp_mbs1_act_sim"


def pieces(*rows: tuple[int, float, float, float, float]) -> Pieces:
    """Return pieces of (kind, start, end, seconds awake, seconds of tensor units)."""
    kind, start, end, awake, tensor = np.array(rows, dtype=float).T
    work = np.zeros((len(rows), len(UNITS)))
    work[:, 0], work[:, 1] = awake, tensor
    return Pieces(kind.astype(np.int64), work, np.arange(len(rows)), start, end)


def test_bin_activity_by_hand() -> None:
    """A pass over two and a half bins beside a collective in the last of them; the other kind runs once."""
    found = bin_activity(
        pieces((0, 0.5, 3.0, 2.5, 1.0), (0, 2.0, 3.0, 0.0, 0.3), (1, 1.25, 1.5, 0.25, 0.2)), 2, 4, 4, 0.0
    )
    assert np.asarray(found.awake) == pytest.approx(np.array([[0.5, 0], [1, 0.25], [1, 0], [0, 0]]))
    assert np.asarray(found.tensor) == pytest.approx(np.array([[0.2, 0], [0.4, 0.2], [0.7, 0], [0, 0]]))


def test_bin_activity_waiting_polls() -> None:
    found = bin_activity(pieces((0, 1.0, 2.0, 1.0, 0.0)), 1, 4, 4, 0.25)
    assert np.asarray(found.awake)[:, 0].tolist() == [0.25, 1.0, 0.25, 0.25]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 9), st.floats(1e-6, 1), st.floats(0.01, 1)), min_size=1, max_size=30),
    st.integers(1, 60),
)
def test_bin_activity_keeps_work(rows: list[tuple[float, float, float]], num_bins: int) -> None:
    some = pieces(*((0, start, start + length, 0.0, share * length) for start, length, share in rows))
    found = bin_activity(some, 1, 10.0, num_bins, 0.0)
    whole = sum(share * length for _, length, share in rows)
    assert float(np.asarray(found.tensor).sum()) * 10.0 / num_bins == pytest.approx(whole, rel=1e-6)
    assert float(np.asarray(found.tensor).min()) >= 0.0


def test_pieces_are_the_work_of_the_step() -> None:
    """Tensor work of 64 micro-batches in both passes; who waits in a run polls, and nobody is without a kernel."""
    job = job_of(planned(DEEP).point, CATALOGUE)
    step = simulate_step(job, Calibration.load(CONFIG).constants(job), CONFIG)
    load, chunk = Training(step), step.stages[3].chunks[0]
    of_pass = load.workload.of_all((chunk.forward, chunk.backward_input, chunk.backward_weight))
    found = load.pieces([(3, 0)])
    assert found.work[found.part, 1].sum() == pytest.approx(job.num_microbatches * of_pass[1])
    activity = bin_activity(found, 1, load.length_s, 4000, 0.3)
    awake = np.asarray(activity.awake)
    assert awake.min() == pytest.approx(0.3) and awake.max() == pytest.approx(1.0)
