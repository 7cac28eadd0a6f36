"""Bad files and places, for every command that takes one: one line, exit status 2, no traceback, nothing printed."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from triplepoint.cli import COMMANDS, main
from triplepoint.errors import nearest

ROOT = Path(__file__).parents[3]

FILES: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "folder": lambda path: path.mkdir(),
    "empty": lambda path: path.write_text(""),
    "not text": lambda path: path.write_bytes(bytes(range(256)) * 8),
    "broken UTF-8": lambda path: path.write_bytes(b"model,cluster\n\xff\xfe,h200x32\n"),
    "NaN": lambda path: path.write_text("model,cluster,num_gpus,tp,global_batch_size\nllama3-8b,h200x32,nan,nan,NaN\n"),
    "half a file": lambda path: path.write_text('{"model": [1, 2'),
    "a loop of links": lambda path: path.symlink_to(path.name),
}

READS = [
    *(f"predict {{}}{suffix}" for suffix in (".csv", ".yaml", ".json", ".tsv", "")),
    "calibrate {}.csv",
    "calibrate --kernels {}",
    "calibrate --collectives {}",
    "calibrate --inference {}",
    "calibrate --heat {}",
    "calibrate --power {} --gpu h200",
    "whatif {}.yaml",
    "whatif {}.csv:1",
    "frontier {}.yaml",
    "frontier run --results {}",
    "swings {}.parquet",
    "swings {}.csv",
    "swings {}.yaml",
    f"swings {ROOT / 'tests/data/power_swings/nodes.parquet'} --spec {{}}.yaml",
    "overhead {out} --from {}",
    "characterise {out} --from {}",
    "trace {} --out {out}",
    "trace {}.et --out {out}",
    "trace {}.et.gz --out {out}",
    f"trace {ROOT / 'tests/data/traces/gloo_rank0.json.gz'} --out {{out}} --rules {{}}",
    "plan --config {}",
    "doctor --files --config {}",
    "doctor --cluster cpu-local --config {}",
    "aggregate --results {}",
    "claims --results {}",
    "report --results {} --out {out}",
    "figure timeline --results {} --out {out}",
    "simulate run --results {}",
    "telemetry run --results {}",
    "parse run 0-1 --results {}",
    "trace --run run --results {}",
    "export smoke --to mlflow --results {} --out {out}",
    "export smoke --to chakra --results {} --out {out}",
    "compare {}.csv",
    "recommend run --results {}",
    "project {}.yaml",
    "project {}.json:1",
    "calibrate --scaling {}",
    "search llama3-8b h200x32 --batch 64 --config {}",
]


def refused(capfd: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 2
    said = capfd.readouterr()
    assert said.out == ""
    line = said.err.removesuffix("\n")
    assert line.startswith("triplepoint: ") and "\n" not in line and len(line) < 1000
    return line


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("command", READS)
def test_file_that_cannot_be_read(
    command: str, kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    name = next(word for word in command.split() if "{}" in word).rpartition("{}")[2].partition(":")[0]
    FILES[kind](tmp_path / f"bad{name}")
    line = refused(capfd, *command.format(tmp_path / "bad", out=tmp_path / "out").split())
    assert "bad" in line, "the file is named"
    assert not (tmp_path / "out").exists()


def test_walk_has_every_command_that_reads_a_file() -> None:
    # `launch` writes to standard error by its number; `completion` reads nothing.
    walked = {command.split()[0] for command in READS}
    assert walked >= set(COMMANDS) - {"launch", "completion", "record", "import", "why"}


def test_launch_of_a_run_there_is_not(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert "no such run" in refused(capfd, "launch", "run", "--results", str(tmp_path))


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("model,cluster,num_gpus,tp,global_batch_size,precison\nllama3-8b,h200x32,8,4,64,fp8\n", ""),
        ("model,gpu,n_gpus,tp,gbs,precison\nllama3-8b,H200,8,4,64,fp8\n", "--published"),
    ],
)
def test_misspelt_column_of_predict_is_refused_with_the_nearest(
    table: str, words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "points.csv").write_text(table)
    line = refused(capfd, "predict", str(tmp_path / "points.csv"), *words.split())
    assert "'precison' (did you mean 'precision'?)" in line


def test_all_errors_of_a_study_are_named_at_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(ROOT / "config", tmp_path / "config", ignore=shutil.ignore_patterns("studies"))
    (tmp_path / "config" / "studies").mkdir()
    path = tmp_path / "config" / "studies" / "mine.yaml"
    path.write_text("descripton: Two mistakes and one more.\nfigure: [timeline]\nsweeps: 3\n")
    line = refused(capfd, "plan", "--config", str(tmp_path / "config"), "--results", str(tmp_path / "results"))
    assert f"{path}: unknown key 'descripton' (did you mean 'description'?)" in line
    assert "'figure' (did you mean 'figures'?)" in line and "sweeps: expected a list; write [3], found 3" in line


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ("gpu,library\nh100,cublas\n", "no column cls, kind, flops"),
        (
            "gpu,library,cls,kind,flops,num_bytes,shape,precision,is_causal,time_us,source\n"
            "h100,cublas,gemm,forward,1e9,1e6,8x8x8,bf16,0,nan,mine\n",
            ":2: found 'nan', expected a number above 0",
        ),
        (
            "gpu,library,cls,kind,flops,num_bytes,shape,precision,is_causal,time_us,source\nh100,cublas\n",
            ":2: 2 cells, the header has 11",
        ),
    ],
)
def test_table_of_measured_kernels_that_is_none(
    rows: str, told: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kernels.csv").write_text(rows)
    assert told in refused(capfd, "calibrate", "--kernels", str(tmp_path / "kernels.csv"))


@pytest.mark.parametrize("words", [["calibrate", "-", "-"], ["predict", ""], ["figure", ""], ["export", "smoke"]])
def test_words_that_make_no_sense(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    refused(capfd, *words)


@pytest.mark.parametrize("kind", ["mlflow", "prometheus"])
def test_export_into_a_place_that_cannot_be_made(kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    line = refused(capfd, "export", "smoke", "--to", kind, "--out", str(tmp_path / "file" / "below"))
    assert "is not a folder; move it away" in line


AS_USER = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.getuid() == 0 else []
"""Root may read and write anywhere; without these capabilities it is held to the modes of files."""


@pytest.mark.skipif(bool(AS_USER) and shutil.which("setpriv") is None, reason="root without setpriv may read anything")
@pytest.mark.parametrize(
    "command",
    [
        "predict {}/file.yaml",
        "calibrate {}/file.csv",
        "trace {}/file.json --out {}/out",
        "plan --write --results {}/locked/results",
        "figure timeline --results {}/locked",
        "export smoke --to mlflow --results {}/locked",
        "overhead {}/locked/out.json",
        "doctor --files --config {}/locked",
    ],
)
def test_file_or_folder_without_permission(command: str, tmp_path: Path) -> None:
    for name in ("file.yaml", "file.csv", "file.json"):
        (tmp_path / name).write_text("{}")
        (tmp_path / name).chmod(0)
    (tmp_path / "locked").mkdir(mode=0)
    words = [*AS_USER, sys.executable, "-m", "triplepoint", *command.replace("{}", str(tmp_path)).split()]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    (tmp_path / "locked").chmod(0o700)
    line = done.stderr.removesuffix("\n")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search("permission", line, re.IGNORECASE) and str(tmp_path) in line and "\n" not in line


@pytest.mark.parametrize(
    ("word", "ours"),
    [
        ("tensor_model_parallel_size", "tp"),
        ("pipeline-parallel", "pp"),
        ("mbs", "micro_batch_size"),
        ("precison", "precision"),
    ],
)
def test_words_of_other_tools_are_known(word: str, ours: str) -> None:
    assert (
        nearest(word, ("tp", "pp", "sequence_parallel", "micro_batch_size", "precision"))
        == f" (did you mean {ours!r}?)"
    )


def test_clone_that_was_not_compiled_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("{}")
    call = "import sys; sys.modules['triplepoint.trace.kineto._scanner'] = None; from triplepoint.cli import main; "
    call += "sys.exit(main(['trace', 't.json', '--out', 'out']))"
    done = subprocess.run([sys.executable, "-c", call], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1 and "_scanner" in done.stderr and "run `make env`" in done.stderr
