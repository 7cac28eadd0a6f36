"""Folding: settings without effect are set back to their default, so that equal measurements are one point."""

from triplepoint.config.point import SETTINGS, Layout, Point


def fold(point: Point) -> Point:
    """Return the point without the settings that can have no effect in it, and with the revision of its engine.

    Settings are folded in the order they are declared in, each by its own rule, which sees those before it folded.
    """
    for name, setting in SETTINGS.items():
        if setting.fold is None:
            continue
        kept = {name: setting.fold(point)}
        if name in Layout.model_fields:
            kept = {"layout": point.layout.model_copy(update=kept)}
        point = point.model_copy(update=kept)
    return point.model_copy(update={"engine_revision": engine_revision(point)})


def engine_revision(point: Point) -> int:
    """Return what `Point.engine_revision` is of a point in this version."""
    layout = point.layout
    was_whole = point.engine == "megatron" or (point.engine == "native" and layout.ep > 1 and point.inference is None)
    if was_whole and point.model.moe and layout.expert_tp > 1:
        return 3
    return 2 if point.engine == "native" and point.recompute == "selective" else 1
