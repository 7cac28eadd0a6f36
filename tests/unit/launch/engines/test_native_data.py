"""Training text: the same samples in every layout, and one clear line when there is none."""

import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.unit.launch.engines.native_points import LLAMA, make_point
from triplepoint.config.contents import CORPUS_LIMIT_BYTES
from triplepoint.errors import UserError
from triplepoint.launch.engines.data import Batcher, open_corpus, read_indexed
from triplepoint.launch.engines.native.model import mean_cross_entropy

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


DOCUMENTS = [[5, 6, 7, 8], list(range(100, 150)), [9, 10], [11]]


def write_indexed(folder: Path, dtype: type = np.uint16, documents: list[list[int]] = DOCUMENTS) -> str:
    """Write an indexed corpus with Megatron-Core's own writer."""
    builder = pytest.importorskip("megatron.core.datasets.indexed_dataset").IndexedDatasetBuilder(
        str(folder / "text.bin"), dtype=dtype
    )
    for document in documents:
        builder.add_document(torch.tensor(document), [len(document)])
    builder.finalize(str(folder / "text.idx"))
    return str(folder / "text")


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.uint8])
def test_read_indexed_is_what_megatron_wrote(tmp_path: Path, dtype: type) -> None:
    found = read_indexed(write_indexed(tmp_path, dtype))
    assert found.tokens.dtype == dtype
    parts = [found.tokens[start:end].tolist() for start, end in zip(found.start, found.end, strict=True)]
    assert parts == DOCUMENTS


def test_open_corpus_indexed_packed_is_cut_over_documents(tmp_path: Path) -> None:
    corpus = open_corpus(make_point(corpus=write_indexed(tmp_path)))
    joined = [token for document in DOCUMENTS for token in document]
    windows = [joined[start : start + 33] for start in range(len(joined) - 32)]
    assert all(corpus.sample(0, index).tolist() in windows for index in range(20))
    facts = corpus.facts()
    assert (facts["tokenizer"], facts["samples"], facts["padding_share"]) == ("as stored", "packed", 0.0)
    assert facts["corpus_bytes"] == 2 * 57


def test_open_corpus_indexed_padded_is_one_document_each(tmp_path: Path) -> None:
    corpus = open_corpus(make_point(corpus=write_indexed(tmp_path), samples="padded"))
    # 33 positions: 4 and 2 of them filled by short documents, all by the long one; one token predicts nothing.
    wanted = {(*document[:33], *[-100] * (33 - len(document))) for document in DOCUMENTS[:3]}
    assert {tuple(corpus.sample(0, index).tolist()) for index in range(40)} == wanted
    assert corpus.facts()["samples"] == "padded"
    assert corpus.facts()["padding_share"] == pytest.approx(1 - (4 + 33 + 2) / (3 * 33))
    tokens, targets = Batcher(corpus, 4, 1, 1, 0).batch(0, CPU)
    assert tokens.min() >= 0
    assert set(targets[targets < 0].tolist()) <= {-100}


def test_open_corpus_padded_text_has_a_line_each(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"ab\n\ncdef")
    corpus = open_corpus(make_point(corpus=str(tmp_path / "text"), samples="padded"))
    found = {bytes(token for token in corpus.sample(0, index).tolist() if token >= 0) for index in range(20)}
    assert found == {b"ab\n", b"cdef"}


def test_mean_cross_entropy_leaves_padding_out() -> None:
    logits = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(1), requires_grad=True)
    target = torch.tensor([[1, 2, -100, -100, -100], [3, 4, 5, 6, -100]])
    rows = torch.log_softmax(logits.detach(), -1)
    by_hand = -sum(rows[i, j, target[i, j]] for i in (0, 1) for j in range(5) if target[i, j] >= 0) / 6
    loss = mean_cross_entropy(logits, target, None)
    torch.testing.assert_close(loss.detach(), by_hand)
    loss.backward()
    assert logits.grad is not None and not logits.grad[target < 0].any()
    nothing = mean_cross_entropy(logits, torch.full_like(target, -100), None)
    assert float(nothing) == 0.0


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda at: cut(at / "text.bin", 60), r"text.bin: 60 bytes, text.idx needs 114; cut off"),
        (lambda at: cut(at / "text.idx", 40), r"text.idx: 40 bytes for 4 sequences; cut off"),
        (lambda at: cut(at / "text.idx", 20), r"text.idx: cut off after 20 bytes"),
        (lambda at: (at / "text.idx").write_bytes(b"PK\x03\x04 something else"), "not an index of Megatron-LM"),
        (lambda at: (at / "text.idx").unlink(), "text.idx: no such file; an indexed corpus has both"),
        (lambda at: (at / "text.bin").unlink(), "text.bin: no such file; an indexed corpus has both"),
    ],
)
def test_open_corpus_indexed_damaged_is_one_line(damage: Callable[[Path], Any], says: str, tmp_path: Path) -> None:
    corpus = write_indexed(tmp_path)
    damage(tmp_path)
    with pytest.raises(UserError, match=says) as caught:
        open_corpus(make_point(corpus=corpus))
    assert "\n" not in str(caught.value)


def test_sample_refuses_tokens_of_another_vocabulary(tmp_path: Path) -> None:
    corpus = open_corpus(make_point(corpus=write_indexed(tmp_path, documents=[[300] * 40])))
    with pytest.raises(UserError, match="token 300, the vocabulary has 256"):
        corpus.sample(0, 0)


def test_open_corpus_refuses_padding_random_tokens() -> None:
    with pytest.raises(UserError, match="random tokens have none"):
        open_corpus(make_point(corpus="random", samples="padded"))
