"""No secret, home folder or user name in what is kept with results: secrets by name and by look."""

import errno
from pathlib import Path

import pytest

from tests.points import planned, tiny_point
from tests.synthetic import Spec, manifest_of
from triplepoint.errors import UserError
from triplepoint.files import private_folder
from triplepoint.manifest import read_manifest, write_manifest
from triplepoint.redact import Redactor, redact_logs

ENVIRONMENT = {
    "HF_TOKEN": "plain-words-that-look-like-nothing",
    "WANDB_API_KEY": "0123456789abcdef0123",
    "MY_KEY": "short",
    "TOKENIZERS_PARALLELISM": "whatever-long",
    "HOME": "/home/alice",
    "USER": "alice",
    "MYCREDS": "words-of-a-variable-without-underscores",
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("401 for plain-words-that-look-like-nothing!", "401 for [HF_TOKEN]!"),
        ("and words-of-a-variable-without-underscores", "and [MYCREDS]"),
        ("train.py --wandb-api-key AbCdEf123456 --tp 8", "train.py --wandb-api-key [redacted] --tp 8"),
        ("DB_PASSWORD='hunter2hunter2' python x.py", "DB_PASSWORD='[redacted]' python x.py"),
        ('{"secret": "abcdefgh12", "tp": 8}', '{"secret": "[redacted]", "tp": 8}'),
        ("Authorization: Bearer abc.def.ghi.jkl", "Authorization: Bearer [redacted]"),
        ("token hf_abcdefghijklmnopqrstuvwx refused", "token [redacted] refused"),
        ("https://bob:pass1@example.org/x", "https://[redacted]@example.org/x"),
        ("ghp_abcdefghijklmnopqrstuvwxyz0123456789", "[redacted]"),
        ("open /home/alice/data/x.bin", "open ~/data/x.bin"),
        ("open /scratch/alice/x.bin of malice", "open /scratch/$USER/x.bin of malice"),
    ],
)
def test_text_without_secrets_and_names(text: str, expected: str) -> None:
    assert Redactor(ENVIRONMENT).text(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "num_token=4096000000 key=value short true whatever-long",
        "rank 3: token embedding has the wrong shape",
        "http://127.0.0.1:29500/store at /home/alicent/x",
        "NCCL_SOCKET_IFNAME=eth0 monkey: bananabread",
    ],
)
def test_text_of_other_words_stays(text: str) -> None:
    assert Redactor(ENVIRONMENT).text(text) == text


def test_manifest_has_no_secret_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "planted-in-the-environment")
    manifest = manifest_of(Spec("tiny-llama", {}, status="crashed"), planned(tiny_point()))
    command = {"command": "env X=planted-in-the-environment train.py"}
    write_manifest(tmp_path / "manifest.json", manifest.model_copy(update={"facts": manifest.facts | command}))
    text = (tmp_path / "manifest.json").read_text()
    assert "planted" not in text and "env X=[WANDB_API_KEY] train.py" in text
    assert read_manifest(tmp_path / "manifest.json").evidence == manifest.evidence


def test_folder_of_pickles_is_private_and_below_none_that_everyone_may_change(tmp_path: Path) -> None:
    assert private_folder(tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    (tmp_path / "a").chmod(0o777)
    with pytest.raises(UserError, match=r"/a: every user may change it, .*'chmod o-w .*/a', or use results elsewhere"):
        private_folder(tmp_path / "a" / "c")
    (tmp_path / "a").chmod(0o1777)
    private_folder(tmp_path / "a" / "c")


def test_logs_have_no_secret_and_are_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MYCREDS", "words-of-a-variable")
    told = b"words-of-a-variable ghp_abcdefghijklmnopqrstuvwxyz0123456789 postgres://b:pass@db/x ASIAABCDEFGHIJKLMNOP"
    clean = b"[MYCREDS] [redacted] postgres://[redacted]@db/x [redacted]"
    bar = b"10 %\r" * 100_000  # of a progress bar: one line
    (tmp_path / "rank0.log").write_bytes(told + b"\n\xff\r\n" + bar + told)
    redact_logs(tmp_path)
    assert (tmp_path / "rank0.log").read_bytes() == clean + b"\n\xff\r\n" + bar + clean
    assert (tmp_path / "rank0.log").stat().st_mode & 0o777 == 0o600


def test_log_of_one_endless_line_keeps_all_but_secrets(tmp_path: Path) -> None:
    words = "0123456789 " * 50_000
    (tmp_path / "rank0.log").write_text(f"{words}ghp_abcdefghijklmnopqrstuvwxyz0123456789 {words}")
    redact_logs(tmp_path)
    assert (tmp_path / "rank0.log").read_text() == f"{words}[redacted] {words}"


def test_log_that_cannot_be_written_again_is_kept_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(self: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "rank0.log").write_text("text")
    monkeypatch.setattr(Path, "replace", full)
    redact_logs(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["rank0.log"]
    assert (tmp_path / "rank0.log").read_text() == "text"
    assert "rank0.log: secrets that the job printed are not removed (No space left" in capsys.readouterr().err
