"""Points of one label are told apart by what they differ in."""

from tests.points import TINY, planned, tiny_point
from triplepoint.config.plan import PlanEntry
from triplepoint.config.point import Point, Steps
from triplepoint.tables.variants import find_variants


def variants(*points: Point) -> list[str | None]:
    entries = [
        PlanEntry(run=f"run{n}", studies=("s",), invalid_because=None, planned=planned(point, f"run{n}"))
        for n, point in enumerate(points)
    ]
    found = find_variants(entries)
    return [found.get(entry.run) for entry in entries]


def test_find_variants_points_of_labels_of_their_own_have_none() -> None:
    assert variants(tiny_point(), tiny_point(micro_batch_size=2), tiny_point(repeat=2)) == [None, None, None]


def test_find_variants_says_what_differs_and_repeats_share_it() -> None:
    short, long = Steps(measured=10), Steps(measured=20)
    points = [tiny_point(steps=steps, repeat=repeat) for steps in (short, long) for repeat in (1, 2)]
    assert variants(*points) == ["measured 10", "measured 10", "measured 20", "measured 20"]


def test_find_variants_of_models_of_one_name() -> None:
    wide = TINY.model_copy(update={"ffn_hidden_size": 96})
    assert variants(tiny_point(), tiny_point(model=wide)) == ["ffn hidden size 64", "ffn hidden size 96"]


def test_find_variants_points_measured_alike_stay_together() -> None:
    """One point of another study must not tear the first study's line apart."""
    first = [tiny_point(micro_batch_size=size, steps=Steps(measured=3)) for size in (1, 2, 4)]
    other = tiny_point(micro_batch_size=1, steps=Steps(measured=4))
    assert variants(*first, other) == ["measured 3"] * 3 + ["measured 4"]


def test_find_variants_leaves_other_models_alone() -> None:
    other = tiny_point(model=TINY.model_copy(update={"name": "other"}), steps=Steps(measured=9))
    assert variants(tiny_point(), other) == [None, None]


def test_find_variants_that_take_too_many_words_go_by_digest() -> None:
    found = variants(tiny_point(), tiny_point(corpus="/a/path/" + "b" * 60), tiny_point(corpus="/a/path/" + "c" * 60))
    assert found[0] == "corpus random"
    assert found[1] is not None and found[2] is not None and len({*found}) == 3
    assert all(text is None or len(text) < 41 for text in found)


def test_find_variants_with_a_key_the_others_leave_out() -> None:
    assert variants(tiny_point(), tiny_point(weights="w.pt")) == ["weights random", "weights w.pt"]


def test_find_variants_of_points_that_differ_in_what_is_traced_alone() -> None:
    points = [tiny_point(), tiny_point(trace_ranks=(0,))]
    assert variants(*points) == [point.digest()[:6] for point in points]
