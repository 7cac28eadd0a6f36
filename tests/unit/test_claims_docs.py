"""`docs/claims.md`: its examples run, and it names every kind, key and quantity."""

import re
from pathlib import Path
from typing import get_args

import yaml

from triplepoint.compare.own_values import COLUMNS, compare_table
from triplepoint.tables.claims import CLAIMS
from triplepoint.verdicts.file import AnyClaim, Claim, Claims
from triplepoint.verdicts.judge import check_claims
from triplepoint.verdicts.number import Verdict
from triplepoint.verdicts.quantities import DERIVED
from triplepoint.verdicts.read import Published

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "claims.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, flags=re.DOTALL)


def test_example_of_claims_is_right() -> None:
    (text,) = blocks("yaml")
    published = Published(Claims.model_validate(yaml.safe_load(text)), ROOT / "config" / "published" / "figures")
    check_claims(published)
    rows = published.rows("microbatch")
    assert len(rows) == 20 and all(published.figure("microbatch").settings_of(cells) for cells in rows)


def test_example_of_measurements_is_right(tmp_path: Path) -> None:
    (text,) = blocks("csv")
    (tmp_path / "table.csv").write_text(text)
    rows = compare_table(tmp_path / "table.csv", tmp_path, ROOT / "config", lambda _: None)
    assert [(row["id"], row["quantity"]) for row in rows] == [
        ("a", "step_time_s"), ("a", "gpu_power_w"), ("b", "step_time_s"), ("b", "gpu_power_w"),
    ]  # fmt: skip
    assert all(row["ours"] is not None for row in rows)
    assert all(f"`{column}`" in TEXT for column in COLUMNS if not column.endswith(("_lo", "_hi")))


def test_every_quantity_is_listed() -> None:
    listed = re.findall(r"^\| `(\w+)` \| (\S+) \| (.*) \|$", TEXT, flags=re.MULTILINE)
    assert [row for row in listed if row[0] != "kind"] == [(name, one.unit, one.about) for name, one in DERIVED.items()]


def test_every_kind_of_claim_has_its_keys() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|$", TEXT, flags=re.MULTILINE))
    union, _ = get_args(AnyClaim)
    for section in get_args(union):
        (kind,) = get_args(section.model_fields["kind"].annotation)
        keys = [name for name in section.model_fields if name not in {*Claim.model_fields, "kind"}]
        assert sorted(re.findall(r"`(\w+)`", rows[kind])) == sorted(keys), kind


def test_every_kind_of_row_and_verdict_is_explained() -> None:
    (column,) = (column for column in CLAIMS.columns if column.name == "kind")
    kinds = re.findall(r"\w+", column.about.partition(":")[0].replace(" or ", " "))
    explained = re.findall(r"^\| `(\w+)` \| [^|]*\| [^|]*\| [^|]*\|$", TEXT, flags=re.MULTILINE)
    assert set(kinds) == set(explained)
    assert all(f"{verdict}" in TEXT for verdict in Verdict)
