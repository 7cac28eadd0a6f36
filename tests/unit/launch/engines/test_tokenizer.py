"""Text through a tokenizer: a tiny one, trained here, and the files that are none."""

import hashlib
import sys
from pathlib import Path

import pytest
import tokenizers
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.points import tiny_point
from tests.unit.launch.engines.native_points import LLAMA, make_point
from triplepoint.config.rules import check_corpus, fold
from triplepoint.errors import UserError
from triplepoint.launch.engines.data import Batcher, open_corpus, open_tokenizer

TEXT = "the cat sat on the mat\nthe dog sat on the log, \u00e4h\n\nthe end"
SIZE = 280


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a text, and a byte-level BPE of 280 tokens with one added, trained on it."""
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=SIZE - 1, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([TEXT] * 4, trainer)
    tokenizer.add_special_tokens(["<s>"])
    # What a published file may say, and is not done here.
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", SIZE - 1)])
    tokenizer.enable_truncation(4)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "text").write_text(TEXT, encoding="utf-8")
    assert tokenizer.get_vocab_size() == SIZE
    return folder / "text", folder / "tokenizer.json"


def words_of(path: Path) -> tokenizers.Tokenizer:
    found = tokenizers.Tokenizer.from_file(str(path))
    found.no_truncation()
    return found


MODEL = LLAMA.model_copy(update={"vocab_size": SIZE})


def test_packed_samples_are_cut_from_the_tokens_of_the_whole_text(made: tuple[Path, Path]) -> None:
    text, tokenizer = made
    corpus = open_corpus(make_point(MODEL, corpus=str(text), tokenizer=str(tokenizer), sequence_length=8))
    assert corpus.text is not None and words_of(tokenizer).decode(corpus.text.tolist()) == TEXT
    assert corpus.text.numel() < len(TEXT)
    tokens = corpus.text.tolist()
    windows = [tokens[start : start + 9] for start in range(len(tokens) - 8)]
    assert all(corpus.sample(0, index).tolist() in windows for index in range(20))


def test_padded_samples_are_lines(made: tuple[Path, Path]) -> None:
    text, tokenizer = made
    corpus = open_corpus(make_point(MODEL, corpus=str(text), tokenizer=str(tokenizer), samples="padded"))
    lines = [words_of(tokenizer).encode(line, add_special_tokens=False).ids for line in TEXT.splitlines(keepends=True)]
    # The empty line is one token, which predicts nothing.
    wanted = {(*line, *[-100] * (33 - len(line))) for line in lines if len(line) > 1}
    assert len(wanted) == 3 and {tuple(corpus.sample(0, index).tolist()) for index in range(60)} == wanted
    assert Batcher(corpus, 1, 2, 1, 0).batch(0, torch.device("cpu"))[0].shape == (2, 32)


def test_the_manifest_says_which_tokenizer(made: tuple[Path, Path]) -> None:
    text, tokenizer = made
    facts = open_corpus(make_point(MODEL, corpus=str(text), tokenizer=str(tokenizer), sequence_length=8)).facts()
    assert facts["tokenizer"] == str(tokenizer)
    assert facts["tokenizer_sha256"] == hashlib.sha256(tokenizer.read_bytes()).hexdigest()
    assert facts["tokenizer_vocab_size"] == SIZE
    assert facts["samples"] == "packed"


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.sampled_from("the cat\n\u00e4\u4e16"), max_size=60))
def test_encode_loses_nothing_and_lines_are_documents(text: str, made: tuple[Path, Path]) -> None:
    tokenizer, library = open_tokenizer(str(made[1]), SIZE), words_of(made[1])
    for by_line in (False, True):
        tokens, documents = tokenizer.encode(text, by_line)
        parts = [library.decode(tokens[start:end].tolist()) for start, end in documents]
        assert "".join(parts) == text == library.decode(tokens.tolist())
        assert not by_line or all(part.find("\n") in (-1, len(part) - 1) for part in parts)


def test_a_text_cut_within_a_character_is_read_up_to_it(made: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes("the cat sat \u4e16".encode()[:-1])
    corpus = open_corpus(make_point(MODEL, corpus=str(tmp_path / "text"), tokenizer=str(made[1]), sequence_length=2))
    assert corpus.text is not None and words_of(made[1]).decode(corpus.text.tolist()) == "the cat sat "


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file or directory; give the path of a tokenizer.json, or tokenizer: bytes"),
        (b"", "damaged"),
        (b'{"version": "1.0"}', "damaged"),
        (b'{\n"version": "1.0",\n"model": {"type": "BPE", "vo', "damaged"),
        (b"\xff\xfe\x00", "damaged"),
    ],
)
def test_a_file_that_is_no_tokenizer_says_so_in_one_line(content: bytes | None, says: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        open_corpus(make_point(tokenizer=str(path)))
    message = str(caught.value)
    assert message.startswith(f"tokenizer {path}: ") and says in message and "\n" not in message


def test_a_larger_vocabulary_than_the_models_is_refused(made: tuple[Path, Path]) -> None:
    assert open_tokenizer(str(made[1]), SIZE).vocab_size == SIZE
    with pytest.raises(UserError, match="280 tokens, the model's vocab_size is 279; use the tokenizer of the model"):
        open_tokenizer(str(made[1]), SIZE - 1)


def test_bytes_that_are_no_text_are_refused(made: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"the \xff cat")
    with pytest.raises(UserError, match="not UTF-8 text at byte 4, a tokenizer reads text; convert it, or set"):
        open_corpus(make_point(MODEL, corpus=str(tmp_path / "text"), tokenizer=str(made[1])))


def test_a_short_text_counts_its_tokens(made: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "text").write_text("the")
    with pytest.raises(UserError, match=r": [12] tokens are too few for sequence_length 32"):
        open_corpus(make_point(MODEL, corpus=str(tmp_path / "text"), tokenizer=str(made[1])))


def test_without_the_library_the_extra_is_named(made: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UserError, match=r"not installed; pip install tokenizers, or set"):
        open_tokenizer(str(made[1]), SIZE)


def test_a_point_without_a_tokenizer_is_the_point_it_was() -> None:
    assert "tokenizer" not in tiny_point().model_dump()
    # Random tokens need none.
    assert fold(tiny_point(tokenizer="a.json")) == fold(tiny_point())
    assert fold(tiny_point(tokenizer="a.json", corpus="stdlib")).tokenizer == "a.json"


def test_plan_leaves_the_vocabulary_to_the_tokenizer_and_tokens_to_their_files(tmp_path: Path) -> None:
    small = tiny_point().model.model_copy(update={"vocab_size": 128})
    assert check_corpus(tiny_point(model=small, corpus="stdlib", tokenizer="a.json")) is None
    (tmp_path / "text.idx").touch()
    reason = check_corpus(tiny_point(corpus=str(tmp_path / "text"), tokenizer="a.json"))
    assert reason is not None and reason.endswith("has tokens of its own; set tokenizer: bytes")
