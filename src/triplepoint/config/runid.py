"""Run ids: a readable label and the beginning of the digest, made from a point alone."""

from triplepoint.config.point import SETTINGS, Layout, Measured, Point, settings_of
from triplepoint.config.setting import write

DIGEST_DIGITS = 6
"""Of the digest in a run id: enough for the points of one label. Stages compare whole digests."""
_MOST_LABEL = 180
"""Longest label. File systems take names of 255 bytes, and logs and scratch files add to them. Unit: character."""


def run_id(point: Point) -> str:
    """Return the name of a run, such as `llama3-70b_h200x32_tp4-pp4-dp2_mbs1_act_r1_3f9a01`: label and digest.

    The digest makes the name that of one point only. A changed point is another run beside the first, whose results
    are kept, and found again when the change is taken back.
    """
    return f"{run_label(point)[:_MOST_LABEL]}_{point.digest()[:DIGEST_DIGITS]}"


def run_label(point: Point) -> str:
    """Return the label of a point, such as `llama3-70b_h200x32_tp4-pp4-dp2-sp-zero1_mbs1_act_r1`.

    Model, cluster, layout and repeat are always there, and of the settings those that are not as usual, see `Setting`.
    A label is not parsed: facts are in `point.json`.
    """
    names = ["schedule", *Measured.model_fields]
    texts = _texts(point, names)
    return "_".join([point.model.name, point.cluster.name, layout_label(point), *texts, f"r{point.repeat}"])


def layout_label(point: Point) -> str:
    """Return the degrees and switches of a point's layout, such as `tp2-pp2-dp8-ep8-sp-zero1`."""
    return "-".join(_texts(point, [name for name in Layout.model_fields if name != "schedule"]))


def _texts(point: Point, names: list[str]) -> list[str]:
    """Return the texts of settings that are not as usual."""
    values, texts = settings_of(point), []
    for name in names:
        setting = SETTINGS[name]
        usual = setting.usual(point) if callable(setting.usual) else setting.usual
        if usual is None or values[name] != usual:
            texts.append(write(name, setting.label, values))
    return [text for text in texts if text]
