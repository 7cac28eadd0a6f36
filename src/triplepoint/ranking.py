"""Ranking of the predicted layouts of one training, with the layouts that tie with the fastest."""

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from pathlib import Path

from triplepoint.simulate.layouts import same_training
from triplepoint.simulate.predict.prediction import Prediction, cell_of, read_calibrations
from triplepoint.status import PredictionStatus

COLUMNS = ("rank", "num_ranked", "slower_fraction", "slower_lo_fraction", "slower_hi_fraction", "tied_with_first")
"""Columns that a ranking adds to predictions."""

_RUNNABLE = (PredictionStatus.OK, PredictionStatus.UNDECIDED)


def rank(predictions: Sequence[Prediction], config: Path) -> list[dict[str, object]]:
    """Return the ranking columns of each prediction; empty if it is not of training or cannot run.

    Predictions are ranked against each other if they train the same model with the same batch on the same number of
    GPUs of one type with one stack. The interval is that of the difference to the fastest: errors common to both
    cancel, and the rest depends on how the layouts differ (see `LayoutWidths`). A layout ties with the fastest if it is
    as fast with a probability of at least 10 %.

    Args:
        predictions: Predictions of any number of trainings.
        config: Folder of the configuration.

    Raises:
        UserError: If the calibration is missing or invalid.
    """
    calibration = read_calibrations(config)[0]
    trainings: dict[Hashable, list[int]] = defaultdict(list)
    for index, prediction in enumerate(predictions):
        if prediction.laid is not None and prediction.status in _RUNNABLE:
            trainings[same_training(prediction.laid.job)].append(index)
    rows: list[dict[str, object]] = [dict.fromkeys(COLUMNS, "") for _ in predictions]
    for indices in trainings.values():
        by_time = sorted(indices, key=lambda index: predictions[index].step_time_s)
        fastest = predictions[by_time[0]]
        for position, index in enumerate(by_time, 1):
            prediction = predictions[index]
            assert prediction.laid is not None and fastest.laid is not None
            slower = math.log(prediction.step_time_s / fastest.step_time_s)
            width = calibration.layout_width(fastest.laid, prediction.laid) if position > 1 else 0.0
            interval = (slower, slower - width, slower + width)
            is_tied = position == 1 or calibration.is_tied(fastest.laid, prediction.laid, slower)
            rows[index] = {
                "rank": position,
                "num_ranked": len(by_time),
                **{name: cell_of(math.expm1(value)) for name, value in zip(COLUMNS[2:5], interval, strict=True)},
                "tied_with_first": "yes" if is_tied else "no",
            }
    return rows
