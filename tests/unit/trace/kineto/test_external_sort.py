"""Sorting through a file: as a stable sort in memory, whatever fits in memory."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from triplepoint.trace.kineto import Rows
from triplepoint.trace.kineto.external_sort import Sorter

NUMBERED = np.dtype([("key", "i8"), ("number", "i4")])


def numbered(chunks: list[list[int]]) -> list[Rows]:
    """Return rows of the keys, numbered through all chunks."""
    made, count = [], 0
    for keys in chunks:
        rows = np.zeros(len(keys), dtype=NUMBERED)
        rows["key"], rows["number"] = keys, range(count, count + len(keys))
        count += len(keys)
        made.append(rows)
    return made


def assert_sorts(chunks: list[Rows], sorter: Sorter) -> None:
    for rows in chunks:
        sorter.add(rows)
    every = np.concatenate([*chunks, np.zeros(0, dtype=NUMBERED)])
    expected = every[np.argsort(every["key"], kind="stable")].tolist()
    assert sorter.count == len(expected)
    for _ in range(2):
        blocks = list(sorter.blocks())
        assert [row for block in blocks for row in block.tolist()] == expected
        assert all(len(block) for block in blocks)
        assert all(one["key"][-1] < other["key"][0] for one, other in zip(blocks, blocks[1:], strict=False))


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.lists(st.integers(-3, 12), max_size=12), max_size=12), st.integers(1, 30))
def test_blocks_equal_a_stable_sort(chunks: list[list[int]], capacity: int) -> None:
    with TemporaryDirectory() as folder:
        assert_sorts(numbered(chunks), Sorter("key", Path(folder), capacity))


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=8), max_size=12), st.integers(1, 9))
def test_blocks_of_any_keys_equal_a_stable_sort(chunks: list[list[int]], capacity: int) -> None:
    with TemporaryDirectory() as folder:
        assert_sorts(numbered(chunks), Sorter("key", Path(folder), capacity))


def test_blocks_stay_small_however_many_rows(tmp_path: Path) -> None:
    keys = np.random.default_rng(1).permutation(50_000).tolist()
    chunks = numbered([keys[at : at + 300] for at in range(0, len(keys), 300)])
    sorter = Sorter("key", tmp_path, 1000)
    assert_sorts(chunks, sorter)
    sizes = [len(block) for block in sorter.blocks()]
    assert max(sizes) <= 1500
    assert min(sizes[:-1]) >= 500


def test_blocks_all_equal_stand_in_one(tmp_path: Path) -> None:
    sorter = Sorter("key", tmp_path, 10)
    for rows in numbered([[7] * 9] * 20):
        sorter.add(rows)
    (block,) = sorter.blocks()
    assert block["number"].tolist() == list(range(180))


def test_sorter_leaves_nothing_by_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "scratch"
    sorter = Sorter("key", folder, 2)
    assert not folder.exists(), "nothing is made before it is needed"
    for rows in numbered([[3, 1], [2, 5], [4]]):
        sorter.add(rows)
    reading = sorter.blocks()
    next(reading)
    assert list(folder.iterdir()) == []


def test_sorter_without_rows_has_no_blocks(tmp_path: Path) -> None:
    sorter = Sorter("key", tmp_path)
    sorter.add(np.zeros(0, dtype=NUMBERED))
    assert list(sorter.blocks()) == []
