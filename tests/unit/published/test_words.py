"""What cells of tables of training runs mean; spellings as published tables have them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triplepoint.published import words
from triplepoint.published.words import UnreadableError, UnsupportedError


@pytest.mark.parametrize(
    ("text", "expected"),
    [("8", 8), ("6 (assumed)", 6), ("1,024", 1024), (" 4.0 ", 4), ("", None), ("n/a", None), ("not stated", None)],
)
def test_read_count_reads_what_tables_write(text: str, expected: int | None) -> None:
    assert words.read_count("pp", text) == expected


@pytest.mark.parametrize("text", ["eight", "-3", "4.5", "1e400", "8x", "1e13"])
def test_read_count_refuses_what_is_no_count(text: str) -> None:
    with pytest.raises(UnreadableError, match="pp is"):
        words.read_count("pp", text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FP16", "fp16"),
        ("BF16", "bf16"),
        ("amp_bf16", "bf16"),
        ("FP8 (delayed)", "fp8"),
        ("", "bf16"),
    ],
)
def test_read_precision_by_meaning(text: str, expected: str) -> None:
    assert words.read_precision(text) == expected


def test_read_precision_refuses_tf32_by_name() -> None:
    with pytest.raises(UnsupportedError, match="'TF32' is not simulated; .*fp32 is, without tensor cores"):
        words.read_precision("TF32")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("none", ("none", None)),
        ("full (use_checkpoint true in configs)", ("full", None)),
        ("selective", ("selective", None)),
        ("full, 4 layers", ("full", 4)),
        ("not stated (likely none/selective)", (None, None)),
        ("see recipe", (None, None)),
        ("activation checkpointing on", ("full", None)),
    ],
)
def test_read_recompute_by_meaning(text: str, expected: tuple[str | None, int | None]) -> None:
    assert words.read_recompute(text) == expected


@pytest.mark.parametrize(
    ("text", "sharding", "overlap"),
    [
        ("DDP (no ZeRO)", "no_shard", None),
        ("none (DP=1)", "no_shard", None),
        ("DDP, no grad overlap", "no_shard", frozenset()),
        ("distributed optimizer", "optim", None),
        ("distributed optimizer, overlap grad reduce/param gather", "optim", frozenset({"grad", "param"})),
        ("FSDP full-shard (ZeRO-3), MP mode DEFAULT", "optim_grads_params", None),
        ("FSDP2 shard=8", "optim_grads_params", None),
        ("ZeRO-2", "optim_grads", None),
        ("", "no_shard", None),
    ],
)
def test_read_shards_by_meaning(text: str, sharding: str, overlap: object) -> None:
    found = words.read_shards(text)
    assert (found.sharding, found.overlap) == (sharding, overlap)


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    for read in (
        lambda cell: words.read_count("pp", cell),
        lambda cell: words.read_number("params_B", cell),
        words.read_precision,
        words.read_recompute,
        words.read_shards,
    ):
        try:
            read(text)
        except UnreadableError as error:
            assert "\n" not in str(error) and len(str(error)) < 200


@pytest.mark.parametrize(
    ("text", "sharding", "size", "is_hybrid"),
    [
        ("HSDP", "optim_grads_params", None, True),
        ("HSDP shard=8 replicate=4", "optim_grads_params", 8, True),
        ("FSDP HYBRID_SHARD", "optim_grads_params", None, True),
        ("_HYBRID_SHARD_ZERO2", "optim_grads", None, True),
        ("FSDP2 shard=64", "optim_grads_params", 64, False),
        ("ZeRO-3", "optim_grads_params", None, False),
    ],
)
def test_read_shards_knows_groups(text: str, sharding: str, size: int | None, is_hybrid: bool) -> None:
    found = words.read_shards(text)
    assert (found.sharding, found.shard_size, found.is_hybrid) == (sharding, size, is_hybrid)


@pytest.mark.parametrize(
    ("text", "keeps_gathered"),
    [
        ("FSDP2 reshard_after_forward=False", True),
        ("FSDP2 no reshard", True),
        ("FSDP2 reshard_after_forward=True", False),
        ("ZeRO-3, no offload", False),
        ("FSDP cpu_offload=False", False),
    ],
)
def test_read_shards_knows_what_stays_where(text: str, keeps_gathered: bool) -> None:
    assert words.read_shards(text).keeps_gathered == keeps_gathered


@pytest.mark.parametrize("text", ["ZeRO-3 CPU offload", "ZeRO-3 offload_optimizer"])
def test_read_shards_in_the_memory_of_the_host_is_unsupported(text: str) -> None:
    with pytest.raises(UnsupportedError, match="offload"):
        words.read_shards(text)
