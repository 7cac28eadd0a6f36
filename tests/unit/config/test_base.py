from functools import partial
from pathlib import Path

import pytest

from triplepoint.config.base import Quantity, Strict, parse
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.cluster import ClusterConfig
from triplepoint.config.gpu import GpuConfig
from triplepoint.config.model import ModelConfig
from triplepoint.config.study import Selection
from triplepoint.config.yaml_file import read, read_yaml
from triplepoint.errors import UserError


def message(call: object, *arguments: object) -> str:
    with pytest.raises(UserError) as caught:
        call(*arguments)  # type: ignore[operator]
    text = str(caught.value)
    assert "\n" not in text
    return text


def replace(path: Path, old: str, new: str) -> Path:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return path


def test_read_yaml_key_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("tp: 1\npp: 2\ntp: 4\n")
    assert "key 'tp' given twice" in message(read_yaml, path)


def test_read_yaml_nested_key_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("defaults:\n  steps: {warmup: 1, warmup: 2}\n")
    assert "key 'warmup' given twice" in message(read_yaml, path)


def test_read_yaml_missing_file_names_nearest(config_dir: Path) -> None:
    assert message(read_yaml, config_dir / "gpus" / "mi300.yaml").endswith(
        "mi300.yaml: no such file (did you mean 'mi300x.yaml'?)"
    )


def test_read_yaml_missing_file_lists_files(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").touch()
    assert message(read_yaml, tmp_path / "another.yaml").endswith("no such file (known: p.yaml)")


def test_read_yaml_of_nothing_or_of_other_bytes_says_so_in_words(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.touch()
    assert message(read_yaml, path).endswith("expected a mapping of keys to values, found nothing")
    path.write_bytes(b"name: m\xebn")
    assert message(read_yaml, path).endswith("not readable as YAML: byte 0xeb at 7 is not UTF-8; save it as UTF-8")


def test_errors_of_quantities_are_plain_words() -> None:
    class Section(Strict):
        width: Quantity
        depth: Quantity

    content = {"width": 3, "depth": {"value": 1, "unit": "m", "source": "no"}}
    assert message(partial(parse, Section, content), "a.yaml") == (
        "a.yaml: width: expected a mapping of the keys value, unit, source, found 3; "
        "depth.source: expected at least 8 characters, found 'no'"
    )


@pytest.mark.parametrize("text", ["a: [1, 2", "\t- x", "a: b: c"])
def test_read_yaml_broken_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text)
    assert message(read_yaml, path).startswith(f"{path}: not readable as YAML")


def test_read_yaml_list_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("- 1\n")
    assert message(read_yaml, path) == f"{path}: expected a mapping of keys to values, found a list"


def test_read_yaml_exponent_without_sign_is_a_number(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("peak: 989.4e12\n")
    assert read_yaml(path) == {"peak": 989.4e12}


def test_read_typo_in_model_names_nearest_key(config_dir: Path) -> None:
    path = replace(config_dir / "models" / "llama3-70b.yaml", "num_layers", "num_layer")
    assert message(read, ModelConfig, path) == f"{path}: unknown key 'num_layer' (did you mean 'num_layers'?)"


def test_read_names_all_errors_of_a_file_at_once(config_dir: Path) -> None:
    path = replace(config_dir / "models" / "llama3-70b.yaml", "num_layers", "num_layer")
    replace(path, "num_attention_heads: 64", "num_attention_heads: many")
    replace(path, "\nvocab_size:", "\nvocab_sizes:")
    assert message(read, ModelConfig, path) == (
        f"{path}: unknown key 'num_layer' (did you mean 'num_layers'?); unknown key 'vocab_sizes' (did you mean "
        "'vocab_size'?); num_attention_heads: expected a whole number, found 'many'"
    )


def test_read_of_many_errors_counts_the_rest(config_dir: Path) -> None:
    path = config_dir / "models" / "llama3-70b.yaml"
    path.write_text(path.read_text() + "".join(f"zz{number}: 1\n" for number in range(20)))
    line = message(read, ModelConfig, path)
    assert line.count("(known: ") == 1 and line.endswith(" more")


def test_read_typo_in_nested_section_names_nearest_key(config_dir: Path) -> None:
    path = replace(config_dir / "models" / "mixtral-8x7b.yaml", "top_k", "topk")
    assert "unknown key 'moe.topk' (did you mean 'top_k'?)" in message(read, ModelConfig, path)


def test_read_wrong_unit_is_refused(config_dir: Path) -> None:
    path = replace(config_dir / "gpus" / "h200.yaml", "unit: byte/s", "unit: GB/s")
    assert message(read, GpuConfig, path) == f"{path}: memory_bandwidth: unit is 'GB/s', expected 'byte/s'"


def test_read_number_without_source_is_refused(config_dir: Path) -> None:
    path = replace(config_dir / "gpus" / "a100.yaml", "  source: NVIDIA A100 data sheet, SXM, non-tensor\n", "")
    assert message(read, GpuConfig, path) == f"{path}: key 'peak_fp32_flops.source' is missing"


@pytest.mark.parametrize("value", ["0", "-4", "yes", "'4'", "4.5", "null"])
def test_read_count_that_is_none_is_refused(config_dir: Path, value: str) -> None:
    path = replace(config_dir / "models" / "tiny-llama.yaml", "num_layers: 4", f"num_layers: {value}")
    assert message(read, ModelConfig, path).startswith(f"{path}: num_layers: ")


def test_read_cluster_with_gpu_on_cpu_is_refused(config_dir: Path) -> None:
    path = replace(config_dir / "clusters" / "cpu-local.yaml", "device: cpu", "device: cpu\ngpu: h200")
    assert "name a gpu exactly when device is not cpu" in message(read, ClusterConfig, path)


def test_parse_selection_takes_one_name_or_more() -> None:
    assert parse(Selection, {"clusters": "h200x32"}, "x").clusters == ("h200x32",)
    assert parse(Selection, {"clusters": ["h200x32", "h100x64"]}, "x").clusters == ("h200x32", "h100x64")


def test_parse_selection_unknown_key_is_refused() -> None:
    assert message(parse, Selection, {"study": ["smoke"]}, "config/config.yaml") == (
        "config/config.yaml: unknown key 'study' (did you mean 'studies'?)"
    )


def test_cluster_like_another_has_its_keys_but_those_it_gives(config_dir: Path) -> None:
    clusters = config_dir / "clusters"
    (clusters / "wide.yaml").write_text(
        "name: wide\nlike: cpu-local\ndevice: cpu\nnum_nodes: 3\ngpus_per_node: 2\nexecutor: slurm\n"
    )
    catalogue = Catalogue(config_dir)
    wide = catalogue.cluster("wide")
    assert (wide.time_limit_s, wide.num_nodes, wide.executor) == (600, 3, "slurm")
    (clusters / "wider.yaml").write_text((clusters / "wide.yaml").read_text().replace("wide", "wider"))
    replace(clusters / "wider.yaml", "like: cpu-local", "like: wide")
    with pytest.raises(UserError, match="like: wide is itself like cpu-local; write like: cpu-local"):
        catalogue.cluster("wider")
