"""A file that changes under the same path makes another point."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.points import tiny_point
from triplepoint.config import contents
from triplepoint.config.contents import CORPUS_LIMIT_BYTES, Digests, check_contents, with_contents
from triplepoint.config.point import Point
from triplepoint.errors import UserError


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "contents.json"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write(tmp_path / "text.txt", "one text\n")


def write(path: Path, content: str, age_s: float = 60.0) -> Path:
    """Write a file that was last changed a while ago."""
    path.write_text(content)
    then_ns = time.time_ns() - round(age_s * 1e9)
    os.utime(path, ns=(then_ns, then_ns))
    return path


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Files that were read, in order; changes of a file are taken for settled at once."""
    found: list[Path] = []
    read = contents._sha256

    def note(path: Path, limit: int | None) -> str:
        found.append(path)
        return read(path, limit)

    monkeypatch.setattr(contents, "_sha256", note)
    monkeypatch.setattr(contents, "_SETTLED_S", -1.0)
    return found


def planned_now(point: Point, cache: Path) -> Point:
    return with_contents(point, Digests(cache))


@pytest.mark.parametrize("key", ["corpus", "weights", "tokenizer"])
def test_with_contents_changed_file_is_another_point(text: Path, cache: Path, key: str) -> None:
    changes: dict[str, Any] = {"corpus": "stdlib", key: str(text)}
    point = tiny_point(**changes)
    first = planned_now(point, cache)
    assert planned_now(point, cache).digest() == first.digest() != point.digest()
    write(text, "two text\n", age_s=60.0)
    second = planned_now(point, cache)
    assert second.digest() != first.digest()
    write(text, "one text\n")
    assert planned_now(point, cache).digest() == first.digest()


def test_with_contents_indexed_corpus_is_both_files(tmp_path: Path, cache: Path) -> None:
    point = tiny_point(corpus=str(tmp_path / "tokens"))
    index, binary = write(tmp_path / "tokens.idx", "index"), write(tmp_path / "tokens.bin", "tokens")
    digests = [planned_now(point, cache).digest()]
    for path in (index, binary):
        write(path, path.read_text().upper())
        digests.append(planned_now(point, cache).digest())
    assert len(set(digests)) == 3


def test_with_contents_text_beyond_what_is_read_does_not_count(tmp_path: Path, cache: Path) -> None:
    text = write(tmp_path / "text.txt", "x" * CORPUS_LIMIT_BYTES)
    point = tiny_point(corpus=str(text))
    before = planned_now(point, cache)
    write(text, "x" * CORPUS_LIMIT_BYTES + "never read")
    assert planned_now(point, cache).digest() == before.digest()


@pytest.mark.parametrize("change", [{}, {"corpus": "stdlib"}, {"corpus": "no such file"}, {"engine": "simulated"}])
def test_with_contents_without_a_file_is_the_point_itself(cache: Path, change: dict[str, Any]) -> None:
    point = tiny_point(**change)
    assert planned_now(point, cache) == point
    assert "contents" not in planned_now(point, cache).model_dump()
    assert not cache.exists()


@pytest.mark.parametrize("key", ["corpus", "weights", "tokenizer"])
def test_with_contents_of_what_is_no_file_is_refused(tmp_path: Path, cache: Path, key: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(UserError, match=f"{key} .*a folder, pipe or device, expected a file"):
            planned_now(tiny_point(**{key: str(path)}), cache)


def test_with_contents_simulated_reads_nothing(text: Path, cache: Path, reads: list[Path]) -> None:
    planned_now(tiny_point(engine="simulated", corpus=str(text)), cache)
    assert reads == []


def test_digests_reads_a_file_once(text: Path, cache: Path, reads: list[Path]) -> None:
    point = tiny_point(corpus=str(text))
    for _ in range(3):
        planned_now(point, cache)
    assert reads == [text]
    os.utime(text)
    planned_now(point, cache)
    assert reads == [text, text]


def test_digests_same_size_and_time_but_another_file_is_read(text: Path, cache: Path, reads: list[Path]) -> None:
    point = tiny_point(corpus=str(text))
    first = planned_now(point, cache)
    other = write(text.with_name("other"), "two text\n")
    found = text.stat()
    os.utime(other, ns=(found.st_atime_ns, found.st_mtime_ns))
    other.rename(text)
    assert planned_now(point, cache).digest() != first.digest()


def test_digests_of_a_file_that_just_changed_are_not_kept(text: Path, cache: Path) -> None:
    text.write_text("now")
    planned_now(tiny_point(corpus=str(text)), cache)
    assert not cache.exists()


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"a": 1}'])
def test_digests_damaged_cache_is_as_good_as_none(text: Path, cache: Path, damage: str) -> None:
    point = tiny_point(corpus=str(text))
    expected = planned_now(point, cache)
    cache.parent.mkdir(exist_ok=True)
    cache.write_text(damage)
    assert planned_now(point, cache) == expected


def test_digests_cache_that_cannot_be_written_is_done_without(text: Path, tmp_path: Path, reads: list[Path]) -> None:
    (tmp_path / "file").touch()
    found = planned_now(tiny_point(corpus=str(text)), tmp_path / "file" / "contents.json")
    assert found.contents is not None and found.contents.corpus is not None


def test_check_contents_changed_file_is_one_line(text: Path, cache: Path) -> None:
    point = planned_now(tiny_point(corpus=str(text)), cache)
    check_contents(point, Digests(cache))
    write(text, "two text\n")
    with pytest.raises(UserError, match=r"corpus .*text.txt: changed since the plan was made; run snakemake again"):
        check_contents(point, Digests(cache))


def test_check_contents_file_that_is_gone_is_left_to_the_engine(text: Path, cache: Path) -> None:
    point = planned_now(tiny_point(corpus=str(text)), cache)
    text.unlink()
    check_contents(point, Digests(cache))
