"""The model against what its definition says, on one rank without process groups."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.unit.launch.engines.native_points import GPT, GQA, LLAMA, MOE, make_point
from triplepoint.config.model import MixtureOfExperts, ModelConfig
from triplepoint.config.point import Recompute
from triplepoint.launch.engines.native.model import (
    Attention,
    FeedForward,
    Stage,
    TransformerLayer,
    recompute_callers,
    rotary_tables,
    rotate,
)
from triplepoint.launch.engines.native.moe import MixtureOfExpertsBlock
from triplepoint.launch.engines.native.parallel import layers_of_stage
from triplepoint.launch.engines.native.parameters import materialise

CPU = torch.device("cpu")


def filled(module: torch.nn.Module, prefix: str = "") -> torch.nn.Module:
    materialise(module, prefix, seed=1, num_layers=4, device=CPU)
    return module


def make_stage(model: ModelConfig, recompute: Recompute = "none", numbers: range = range(4)) -> Stage:
    with torch.device("meta"):
        layers = {
            number: TransformerLayer(model, FeedForward(model), *recompute_callers(recompute)) for number in numbers
        }
        stage = Stage(model, layers, 32, torch.float32)
    filled(stage)
    return stage


def make_block(moe: MixtureOfExperts) -> MixtureOfExpertsBlock:
    with torch.device("meta"):
        block = MixtureOfExpertsBlock(MOE.model_copy(update={"moe": moe}), 0, None)
    filled(block, "layers.0.feed_forward.")
    with torch.no_grad():
        block.router.weight.mul_(50)  # Clear choices instead of near ties.
    return block


@pytest.mark.parametrize("model", [LLAMA, GPT, GQA], ids=lambda model: model.name)
def test_stage_sees_no_later_token(model: ModelConfig) -> None:
    stage = make_stage(model)
    tokens = torch.arange(32).unsqueeze(0)
    changed = tokens.clone()
    changed[0, 20:] += 1
    before, after = stage(tokens), stage(changed)
    torch.testing.assert_close(before[0, :20], after[0, :20])
    assert not torch.allclose(before[0, 20], after[0, 20])


@pytest.mark.parametrize("model", [LLAMA, GPT], ids=lambda model: model.name)
def test_stage_tells_positions_apart(model: ModelConfig) -> None:
    # One layer: in deeper models the causal mask alone gives the order away.
    stage = make_stage(model.model_copy(update={"num_layers": 1}), numbers=range(1))
    tokens = torch.arange(32).repeat(2, 1)
    tokens[1, :2] = torch.tensor([1, 0])
    logits = stage(tokens)
    assert not torch.allclose(logits[0, -1], logits[1, -1], atol=1e-6)


def test_rotate_depends_on_distance_only() -> None:
    tables = rotary_tables(LLAMA, 32, CPU)
    query, key = torch.randn(2, 1, 1, 1, LLAMA.head_size, generator=torch.Generator().manual_seed(0))
    scores = rotate(query.expand(1, 1, 32, -1), tables) @ rotate(key.expand(1, 1, 32, -1), tables).mT
    torch.testing.assert_close(scores[0, 0, 5, 3], scores[0, 0, 30, 28])
    assert not torch.isclose(scores[0, 0, 5, 3], scores[0, 0, 5, 4])


def test_attention_shares_keys_in_a_group() -> None:
    with torch.device("meta"):
        grouped, whole = Attention(GQA), Attention(LLAMA)
    filled(grouped), filled(whole)
    size = GQA.head_size
    for name in ("query", "output"):
        getattr(whole, name).weight = getattr(grouped, name).weight
    for name in ("key", "value"):
        heads = getattr(grouped, name).weight.view(2, size, -1)
        getattr(whole, name).weight = torch.nn.Parameter(heads.repeat_interleave(2, 0).view(4 * size, -1))
    x, rotary = torch.randn(2, 32, 32), rotary_tables(GQA, 32, CPU)
    torch.testing.assert_close(grouped(x, rotary), whole(x, rotary))


def one_token(block: MixtureOfExpertsBlock, token: Tensor) -> Tensor:
    probability = (block.router.weight @ token).softmax(0)
    weight, chosen = probability.topk(block.moe.top_k)
    outputs = [block.experts[str(int(number))](token) for number in chosen]
    return sum((w * out for w, out in zip(weight / weight.sum(), outputs, strict=True)), torch.zeros_like(token))


def test_experts_give_each_token_its_weighted_choice() -> None:
    block = make_block(MixtureOfExperts(num_experts=4, top_k=2))
    x = torch.randn(2, 8, 32)
    expected = torch.stack([one_token(block, token) for token in x.flatten(0, 1)]).view_as(x)
    torch.testing.assert_close(block(x), expected)


def test_experts_drop_tokens_beyond_their_capacity() -> None:
    block = make_block(MixtureOfExperts(num_experts=4, top_k=1, capacity_factor=1.0))
    x = torch.randn(1, 1, 32).expand(1, 16, 32)
    # All 16 tokens choose the same expert, whose capacity is 1.0 * 16 / 4: the first four.
    out = block(x)
    torch.testing.assert_close(out[0, :4], one_token(block, x[0, 0]).expand(4, 32))
    assert not out[0, 4:].any()


def test_materialise_is_independent_of_the_stage() -> None:
    whole, part = make_stage(LLAMA), make_stage(LLAMA, numbers=range(2, 4))
    for name, parameter in part.named_parameters():
        assert torch.equal(parameter, whole.get_parameter(name)), name
    assert part.embedding is None and whole.head is not None


def test_materialise_draws_each_parameter_anew_with_the_right_spread() -> None:
    stage = make_stage(LLAMA)
    first, second = (stage.get_parameter(f"layers.{number}.attention.query.weight") for number in (0, 1))
    assert not torch.equal(first, second)
    assert float(first.detach().std()) == pytest.approx(0.02, rel=0.1)
    down = stage.get_parameter("layers.0.feed_forward.down.weight")
    assert float(down.detach().std()) == pytest.approx(0.02 / 8**0.5, rel=0.1)
    assert torch.equal(stage.get_parameter("layers.0.attention_norm.weight"), torch.ones(32))


def test_layers_of_stage_covers_all_layers_once() -> None:
    model = LLAMA.model_copy(update={"num_layers": 10})
    for said, found in ((), [3, 3, 2, 2]), ((1, 4, 2, 3), [1, 4, 2, 3]):
        point = make_point(model, pp=4, pipeline_layers=said)
        parts = [layers_of_stage(point, stage) for stage in range(4)]
        assert [len(part) for part in parts] == found
        assert [number for part in parts for number in part] == list(range(10))


class Counting(TorchDispatchMode):
    """Counts GEMMs, SiLUs and cores of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.gemms = self.activations = self.cores = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.gemms += func is torch.ops.aten.mm.default
        self.activations += func is torch.ops.aten.silu.default
        self.cores += func is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
        return func(*args, **(kwargs or {}))


def count(recompute: Recompute) -> tuple[int, int, int]:
    stage = make_stage(LLAMA, recompute)
    with Counting() as counting:
        F.cross_entropy(stage(torch.arange(32).unsqueeze(0)).flatten(0, 1), torch.arange(32)).backward()
    return counting.gemms, counting.activations, counting.cores


def test_recompute_callers_recompute_what_they_say() -> None:
    # Seven matrices in each of four layers and the head; each GEMM has two more in the backward pass.
    forward = 4 * 7 + 1
    assert count("none") == (3 * forward, 4, 4)
    # Recomputation stops when the last tensor the backward pass asked for is there: before the last GEMM.
    assert count("full") == (3 * forward + 4 * 6, 8, 8)
    # Megatron-LM's core_attn: scores, softmax and their product with the values, nothing else.
    assert count("selective") == (3 * forward, 4, 8)


def saved_bytes(**recompute: Any) -> int:
    """Memory of what autograd keeps of a forward pass, but for what is recomputed."""
    point = make_point(LLAMA, **recompute)
    with torch.device("meta"):
        run = {place: recompute_callers(point.recompute_at(place)) for place in range(4)}
        layers = {number: TransformerLayer(LLAMA, FeedForward(LLAMA), *run[number]) for number in range(4)}
        stage = Stage(LLAMA, layers, 32, torch.float32)
    filled(stage)
    parameters = {parameter.untyped_storage().data_ptr() for parameter in stage.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = stage(torch.arange(32).unsqueeze(0)).square().mean()
    found = sum(size for storage, size in kept.items() if storage not in parameters)
    assert loss.requires_grad
    return found


def test_each_recomputed_layer_keeps_less() -> None:
    found = [saved_bytes(recompute="full", recompute_layers=number) for number in range(1, 4)]
    none, full = saved_bytes(), saved_bytes(recompute="full")
    kept = [none, *found, full]
    assert kept == sorted(kept, reverse=True)
    # Layers are alike, so each saves as much.
    assert found[0] - found[1] == found[1] - found[2] > 32 * 32 * 4


def test_selective_recomputation_keeps_queries_keys_and_values_but_not_what_the_core_makes() -> None:
    output, log_sum_exp = 32 * 32 * 4, 4 * 32 * 4
    assert saved_bytes() - saved_bytes(recompute="selective") == 4 * (output + log_sum_exp)


def test_linear_casts_its_weight_once_per_step() -> None:
    linear = make_stage(LLAMA).layers["0"].attention.query
    x = torch.randn(4, 32).bfloat16()
    linear(x), linear(x)
    with torch.no_grad():
        linear.weight.zero_()
    assert linear(x).any()
    linear.forget_cast()
    assert not linear(x).any()
