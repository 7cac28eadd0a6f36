"""How much a collective moves, and among whom."""

from typing import Any

import pytest

from triplepoint.trace.kineto.reader import Message
from triplepoint.trace.rank.process_groups import group_ranks, group_size, message_bytes, tensor_sizes


@pytest.mark.parametrize(
    ("kind", "size_bytes"),
    [
        # 100 elements given, 800 had in the end, of 2 bytes each: of a gather the gathered buffer counts.
        ("all_reduce", 200),
        ("reduce_scatter", 200),
        ("broadcast", 200),
        ("all_to_all", 200),
        ("send", 200),
        ("recv", 1600),
        ("all_gather", 1600),
        ("gather", 1600),
    ],
)
def test_message_bytes_by_kind(kind: str, size_bytes: int) -> None:
    assert message_bytes(kind, Message(in_elements=100, out_elements=800, dtype="BFloat16"), 8) == size_bytes


@pytest.mark.parametrize(
    ("dtype", "size_bytes"),
    [
        ("Byte", 1),
        ("Float8_e4m3fn", 1),
        ("Float8_e5m2", 1),
        ("Bool", 1),
        ("Half", 2),
        ("BFloat16", 2),
        ("c10::BFloat16", 2),
        ("Int", 4),
        ("Float", 4),
        ("Long", 8),
        ("Double", 8),
        ("ComplexFloat", 8),
        ("ComplexDouble", 16),
        ("", -1),
        ("Unheard", -1),
        (None, -1),
        (7, -1),
    ],
)
def test_message_bytes_by_dtype(dtype: Any, size_bytes: int) -> None:
    assert message_bytes("all_reduce", Message(in_elements=1, out_elements=1, dtype=dtype), 2) == size_bytes


@pytest.mark.parametrize("bad", [None, "100", 1.5, [100]])
def test_message_bytes_without_numbers_of_elements_is_unknown(bad: Any) -> None:
    assert message_bytes("all_reduce", Message(in_elements=bad, out_elements=bad, dtype="Float"), 2) == -1


@pytest.mark.parametrize(
    ("kind", "num_ranks", "size_bytes"),
    [("all_reduce", 4, 128), ("all_gather", 4, 512), ("all_gather", 0, -1), ("reduce_scatter", 4, 128)],
)
def test_message_bytes_from_shapes_as_gloo_has_them(kind: str, num_ranks: int, size_bytes: int) -> None:
    # The first argument holds the tensors; what follows are options and repetitions.
    said = Message(input_dims=[[8, 4], [32, 4], []], input_types=["float", "float", ""])
    assert message_bytes(kind, said, num_ranks) == size_bytes
    listed = Message(input_dims=[[[4, 4], [4, 4]], []], input_types=["float", ""])
    assert message_bytes(kind, listed, num_ranks) == size_bytes


@pytest.mark.parametrize(
    "said",
    [
        Message(),
        Message(input_dims=[[8]]),
        Message(input_dims=[], input_types=["float"]),
        Message(input_dims="[8]", input_types=["float"]),
        Message(input_dims=[[8]], input_types="float"),
        Message(input_dims=[[8]], input_types=[8]),
        Message(input_dims=[[]], input_types=["float"]),
    ],
)
def test_message_bytes_of_odd_shapes_is_unknown(said: Message) -> None:
    assert message_bytes("all_reduce", said, 2) == -1


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("[0, 1, 12]", (0, 1, 12)),
        ("[3]", (3,)),
        ("[ 0,1 ]", (0, 1)),
        ([4, 5], (4, 5)),
        # A long list is cut short by the profiler: it is not known then.
        ("[0, 1, 2, ..., 62, 63]", ()),
        ("[]", ()),
        ("[0, -1]", ()),
        ("0, 1", ()),
        (None, ()),
        (7, ()),
        ([], ()),
    ],
)
def test_group_ranks(text: Any, ranks: tuple[int, ...]) -> None:
    assert group_ranks(Message(group_ranks=text)) == ranks


def test_group_size_as_said_else_by_the_ranks() -> None:
    assert group_size(Message(group_size=64, group_ranks="[0, 1, ..., 63]")) == 64
    assert group_size(Message(group_ranks="[0, 1]")) == 2
    assert group_size(Message()) == 0
    for odd in (0, -1, "8", 2.0, None):
        assert group_size(Message(group_size=odd, group_ranks="[5]")) == 1


@pytest.mark.parametrize(
    ("dims", "sizes"),
    [
        ([8, 4], [32]),
        ([[8, 4], [2]], [32, 2]),
        ([[[8, 4], [2]], [], [5]], [32, 2, 5]),
        ([], []),
        ([0, 4], [0]),
        ("[8]", []),
        (None, []),
        ([["x"]], []),
    ],
)
def test_tensor_sizes_however_deep(dims: Any, sizes: list[int]) -> None:
    assert tensor_sizes(dims) == sizes
