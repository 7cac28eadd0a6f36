"""Training text: the same samples in every layout, and one clear line when there is none."""

import sysconfig
from pathlib import Path

import pytest
import torch

from tests.unit.launch.engines.native_points import LLAMA, make_point
from triplepoint.errors import UserError
from triplepoint.launch.engines.data import CORPUS_LIMIT_BYTES, Batcher, open_corpus

CPU = torch.device("cpu")


@pytest.mark.parametrize("corpus", ["random", "stdlib"])
def test_batch_of_all_ranks_is_the_global_batch(corpus: str) -> None:
    text = open_corpus(make_point(corpus=corpus))
    whole = Batcher(text, num_microbatches=4, micro_batch_size=2, dp=1, dp_rank=0).batch(3, CPU)[0]
    parts = [
        Batcher(text, num_microbatches=2, micro_batch_size=2, dp=2, dp_rank=rank).batch(3, CPU)[0] for rank in (0, 1)
    ]
    # Micro-batch by micro-batch, rank by rank.
    assert torch.equal(torch.stack([part.view(2, 2, -1) for part in parts], dim=1).view(8, -1), whole)


def test_batch_targets_are_the_next_tokens() -> None:
    tokens, targets = Batcher(open_corpus(make_point()), 2, 1, 1, 0).batch(0, CPU)
    assert tokens.shape == targets.shape == (2, 32)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])


def test_batch_differs_by_step_sample_and_seed() -> None:
    corpus = open_corpus(make_point(corpus="random"))
    other = open_corpus(make_point(corpus="random", seed=1))
    samples = [corpus.sample(0, 0), corpus.sample(0, 1), corpus.sample(1, 0), other.sample(0, 0)]
    assert len({tuple(sample.tolist()) for sample in samples}) == 4
    assert torch.equal(corpus.sample(1, 0), samples[2])


def test_open_corpus_stdlib_is_python_source() -> None:
    corpus = open_corpus(make_point(corpus="stdlib"))
    first = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[0].read_bytes()
    assert corpus.text is not None and corpus.facts()["corpus_bytes"] == corpus.text.numel() <= CORPUS_LIMIT_BYTES
    assert bytes(corpus.text[: len(first)].tolist()) == first


def test_open_corpus_reads_a_file(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(bytes(range(33)))
    assert open_corpus(make_point(corpus=str(path))).sample(0, 5).tolist() == list(range(33))


def test_open_corpus_refuses_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="absent: No such file or directory; use random, stdlib or"):
        open_corpus(make_point(corpus=str(tmp_path / "absent")))


def test_open_corpus_refuses_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Is a directory; use random"):
        open_corpus(make_point(corpus=str(tmp_path)))


def test_open_corpus_refuses_a_short_file(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"x" * 32)
    with pytest.raises(UserError, match="32 bytes are too few for sequence_length 32; use a longer text"):
        open_corpus(make_point(corpus=str(tmp_path / "text")))


def test_open_corpus_refuses_a_vocabulary_without_room_for_bytes() -> None:
    small = LLAMA.model_copy(update={"vocab_size": 200})
    with pytest.raises(UserError, match="vocab_size 200 of tiny-llama is below 256"):
        open_corpus(make_point(small, corpus="stdlib"))
    assert open_corpus(make_point(small, corpus="random")).sample(0, 0).max() < 200
