"""Tables nobody should write: whatever is in a row, it is one status with a reason of one line, never a crash."""

import csv
import io
import math
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.published.cells import NEMOTRON
from triplepoint.errors import UserError
from triplepoint.published.rows import COLUMNS
from triplepoint.published.table import predict_table
from triplepoint.simulate.predict.power import PowerPrediction
from triplepoint.simulate.predict.prediction import COLUMNS as OUTPUT

CONFIG = Path("config")
STATUSES = {"ok", "oom", "undecided", "invalid", "unsupported"}
NUMBERS = OUTPUT[2 : OUTPUT.index("bottleneck")]
OF_TOKENS = OUTPUT[OUTPUT.index("time_to_first_token_s") : OUTPUT.index("exposed_comm_per_output_token_s") + 1]
TAKEN = ("gpu ", "framework ", "interconnect", "the rate", "power, heat")
POWER = tuple(part.name for part in fields(PowerPrediction))
STEP_TIME = ("step_time_s", "step_time_lo_s", "step_time_hi_s")
TIMES_OF_INFERENCE = (*STEP_TIME, "tokens_per_s_per_gpu", "mfu", "memory_gib", *OF_TOKENS)
NAMES = (
    *("Llama3-8B", "DeepSeek-V3", "Mixtral-8x7B", "GPT-OSS-20B", "Gemma3-27B", "MPT-7B", "Kimi-K2", "Mamba"),
    *("m\u03bfdel", ""),
)
TEXT = (
    *("0", "1", "2", "3", "7", "8", "64", "-1", "1.5", "1e3", "1e12", "1e400", "9" * 30, "NaN", "nan", "inf", "-inf"),
    *("n/a", "-", "", " ", "many", "8 (assumed)", "1,024", "\u0663", "\u00bd", "0x10", "1_000", "\u200b", "\n", '"'),
    *("full 0 layers", "FP8", "INT8", "fp32", "LoRA rank 0", "QLoRA", "HSDP shard=0", "H100 NVL 94GB", "MI300X"),
    *("a100h100", "yes"),
)
cells = st.sampled_from(NAMES) | st.sampled_from(TEXT) | st.integers().map(str) | st.text(max_size=12)
rows = st.dictionaries(st.sampled_from([*COLUMNS, "unknown"]), cells, max_size=5)


def written(content: list[dict[str, str]], **dialect: object) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, [*COLUMNS, "unknown"], **dialect)  # type: ignore[arg-type]
    writer.writeheader()
    writer.writerows(content)
    return text.getvalue()


def predicted(text: str | bytes, folder: Path) -> list[dict[str, str]]:
    source = folder / "in.csv"
    source.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    rows = predict_table(source, CONFIG, lambda _: None)
    return [{"id": key} | {name: str(cell) for name, cell in found.cells().items()} for key, found in rows]


def check(found: dict[str, str]) -> None:
    assert found["status"] in STATUSES
    assert found["reason"] or found["status"] == "ok"
    assert all(note.startswith(TAKEN) for note in found["reason"].split("; ") if note and found["status"] == "ok")
    assert len(found["reason"].splitlines()) <= 1
    expected: tuple[str, ...] = ()
    if found["status"] in ("ok", "oom", "undecided"):
        expected = TIMES_OF_INFERENCE if found["time_to_first_token_s"] else NUMBERS
    for name in (*NUMBERS, *OF_TOKENS):
        assert bool(found[name]) == (name in expected), name
        assert not found[name] or math.isfinite(float(found[name]))
    # Of some GPU types nothing is known of power: all of it or none.
    watts = [float(found[name]) for name in POWER if found[name]]
    assert len(watts) in (0, len(POWER)) and all(0 <= value < math.inf for value in watts)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(rows, min_size=1, max_size=4))
@example([{"layers": "100000000000"}])
@example([{"id": "0\r0"}])
@example([{"task": "inference", "output_tokens": "128"}, {"task": "decode"}, {"task": "dance"}])
@example([{"task": "inference", "output_tokens": "128", "seq": "999999999999"}])
@example([{"task": "inference", "output_tokens": "2000000000", "seq": "8"}])
@example([{"gbs": "1000000000000"}])
@example([{"pp": "1000", "layers": "1000", "gbs": "100000", "n_gpus": "4000", "dp": "", "mbs": "1"}])
@example([{"experts": "100000000000", "topk": "99999999999", "model": "x"}])
@example([{"model": "DeepSeek-V3", "experts": "1000000007", "topk": "8", "framework": "NeMo AutoModel", "hidden": ""}])
@example([{"seq": "999999999999"}])
@example([{"hidden": "999999999999", "heads": "999999999999"}])
@example([{"n_gpus": "999936", "dp": "", "gbs": "249984", "mbs": "1"}])
@example([{"moe_ffn": "3", "experts": "3", "topk": "0"}])
@example([{"heads": "1", "hidden": "1", "kv_heads": "1", "vocab": "1", "ffn": "1", "seq": "1", "tp": "1", "dp": "16"}])
def test_every_row_has_one_status(tmp_path: Path, content: list[dict[str, str]]) -> None:
    changed = [NEMOTRON | {"id": f"R{number}"} | row for number, row in enumerate(content)]
    found = predicted(written(changed), tmp_path)
    ids = [" ".join(row["id"].splitlines()).strip() for row in changed]
    assert [row["id"] for row in found] == [name or str(number) for number, name in enumerate(ids, 1)]
    for row in found:
        check(row)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
@example(b"")
@example(b"\n\n")
@example(b"id,gpu\n")
@example(b'id,gpu\n"1')
@example(b"id,gpu\n1\n2,h100,,,\n")
@example(b"\xff\xfeid,gpu\n\x00,\x00")
def test_any_bytes_are_a_table_or_told(tmp_path: Path, content: bytes) -> None:
    try:
        found = predicted(content, tmp_path)
    except UserError as error:
        assert len(str(error).splitlines()) == 1
    else:
        for row in found:
            check(row)


@pytest.mark.parametrize(
    ("before", "change"),
    [
        ("", {}),
        ("\ufeff", {}),
        ("", {"lineterminator": "\n"}),
        ("", {"lineterminator": "\r"}),
        ("", {"delimiter": ";"}),
        ("", {"delimiter": "\t"}),
        ("\ufeff", {"delimiter": ";", "quoting": csv.QUOTE_ALL}),
    ],
    ids=["plain", "byte order mark", "unix", "old mac", "semicolons", "tabs", "excel"],
)
def test_however_a_table_is_written_it_means_the_same(before: str, change: dict[str, object], tmp_path: Path) -> None:
    (found,) = predicted(before + written([NEMOTRON], **change), tmp_path)
    (plain,) = predicted(written([NEMOTRON]), tmp_path)
    assert found == plain and found["status"] == "ok"


def test_a_row_of_inference_has_its_own_numbers(tmp_path: Path) -> None:
    asked = NEMOTRON | {"model": "Llama3-8B", "task": "inference", "output_tokens": "128", "tp": "1", "dp": "16"}
    asked |= dict.fromkeys(("hidden", "layers", "heads", "kv_heads", "ffn", "vocab", "params_B"), "")
    (few,), (many,) = (predicted(written([asked | {"gbs": gbs}]), tmp_path) for gbs in ("64", "4096"))
    first_s, each_s = float(few["time_to_first_token_s"]), float(few["time_per_output_token_s"])
    assert first_s > each_s > 16e9 / 3.35e12
    # A step is a whole batch, as in table `points`.
    assert float(few["step_time_s"]) == pytest.approx(first_s + 127 * each_s, rel=1e-4)
    assert (few["status"], many["status"]) == ("ok", "oom")
    assert "cache 132.0" in many["reason"]


def test_rows_of_the_same_id_are_all_there(tmp_path: Path) -> None:
    found = predicted(written([NEMOTRON, NEMOTRON | {"gbs": "x"}, NEMOTRON]), tmp_path)
    assert [(row["id"], row["status"]) for row in found] == [("T1", "ok"), ("T1", "invalid"), ("T1", "ok")]


@pytest.mark.parametrize("column", COLUMNS)
def test_a_missing_column_is_no_crash(column: str, tmp_path: Path) -> None:
    text = io.StringIO()
    kept = {name: value for name, value in NEMOTRON.items() if name != column}
    writer = csv.DictWriter(text, kept)
    writer.writeheader()
    writer.writerow(kept)
    (found,) = predicted(text.getvalue(), tmp_path)
    check(found)
