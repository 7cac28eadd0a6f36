"""Which of the layouts of one training is fastest, and which cannot be told apart from it."""

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from pathlib import Path

from triplepoint.simulate.layouts import same_training
from triplepoint.simulate.predict.prediction import Prediction, cell_of, read_calibrations
from triplepoint.status import PredictionStatus

COLUMNS = ("rank", "num_ranked", "slower_fraction", "slower_lo_fraction", "slower_hi_fraction", "tied_with_first")
"""Columns that a ranking adds to predictions."""

_RUNS = (PredictionStatus.OK, PredictionStatus.UNDECIDED)


def rank(predictions: Sequence[Prediction], config: Path) -> list[dict[str, object]]:
    """Return the columns of a ranking for each prediction; empty where it is not of training, or does not run.

    Ranked against each other is what trains one model with one batch on as many GPUs of one type and one stack. The
    interval is of the difference to the fastest: what is not known of both alike cancels, and what is left depends on
    how they differ (see `LayoutWidths`). Tied with the first is what may be as fast with a chance of 10 % or more.

    Args:
        predictions: Rows of any trainings.
        config: Folder of the configuration.

    Raises:
        UserError: If the calibration is missing or wrong.
    """
    calibration = read_calibrations(config)[0]
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for number, one in enumerate(predictions):
        if one.laid is not None and one.status in _RUNS:
            groups[same_training(one.laid.job)].append(number)
    columns: list[dict[str, object]] = [dict.fromkeys(COLUMNS, "") for _ in predictions]
    for members in groups.values():
        ordered = sorted(members, key=lambda number: predictions[number].step_time_s)
        first = predictions[ordered[0]]
        for place, number in enumerate(ordered, 1):
            one = predictions[number]
            assert one.laid is not None and first.laid is not None
            slower = math.log(one.step_time_s / first.step_time_s)
            width = calibration.layout_width(first.laid, one.laid) if place > 1 else 0.0
            ends = (slower, slower - width, slower + width)
            columns[number] = {
                "rank": place,
                "num_ranked": len(ordered),
                **{name: cell_of(math.expm1(end)) for name, end in zip(COLUMNS[2:5], ends, strict=True)},
                "tied_with_first": "yes" if place == 1 or calibration.is_tied(first.laid, one.laid, slower) else "no",
            }
    return columns
