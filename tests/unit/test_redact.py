"""No secret, home folder or user name in what is kept with results: secrets by name and by look."""

from pathlib import Path

import pytest

from tests.points import planned, tiny_point
from tests.synthetic import Spec, manifest_of
from triplepoint.errors import UserError
from triplepoint.files import private_folder
from triplepoint.manifest import read_manifest, write_manifest
from triplepoint.redact import Redactor

ENVIRONMENT = {
    "HF_TOKEN": "plain-words-that-look-like-nothing",
    "WANDB_API_KEY": "0123456789abcdef0123",
    "MY_KEY": "short",
    "TOKENIZERS_PARALLELISM": "whatever-long",
    "HOME": "/home/alice",
    "USER": "alice",
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("401 for plain-words-that-look-like-nothing!", "401 for [HF_TOKEN]!"),
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
