"""What selective recomputation repeats, and what it spares."""

from pathlib import Path
from typing import Any

import pytest

from tests.points import TINY, tiny_point
from tests.unit.simulate.jobs import flops, job, llama, mixtral, operations
from tests.unit.simulate.test_launch import LLAMA_8B
from triplepoint.config.model import LatentAttention
from triplepoint.config.rules import fold, refusal
from triplepoint.published.rows import read_row
from triplepoint.simulate.job import Job
from triplepoint.simulate.memory.training import peak_memory
from triplepoint.simulate.operations import Kernel
from triplepoint.simulate.predict.software import software_use
from triplepoint.simulate.stacks import find_stack
from triplepoint.simulate.work.blocks import Blocks, split_layers
from triplepoint.simulate.work.layer_parts import Share
from triplepoint.simulate.work.recompute import selective_recomputation
from triplepoint.simulate.work.training import stage_work

CONFIG = Path("config")
LATENT = LatentAttention(q_lora_rank=128, kv_lora_rank=64, qk_head_dim=32, qk_pos_emb_head_dim=16, v_head_dim=32)


def selective(*modules: str, **changes: Any) -> Job:
    software = find_stack("Megatron-Core", CONFIG).model_copy(update={"recompute_modules": modules})
    return job(changes.pop("model", llama()), recompute="selective", software=software, **changes)


def again(one: Job, *classes: str) -> float:
    """FLOPs that a backward pass has beyond one without recomputation."""
    plain = Job(**(vars(one) | {"recompute": "none"}))
    return sum(
        sign * flops(operations(stage_work(case), "backward_input"), *classes) for sign, case in ((1, one), (-1, plain))
    )


def test_every_other_repeats_every_second_matrix_product() -> None:
    # Of query, key, value, out, gate, up and down: key, out and up. 8 layers, 2048 tokens.
    products = 512 * 512 + 512 * 512 + 512 * 1536
    assert again(selective("every_other"), "gemm") == 2 * 8 * 2048 * products
    assert again(selective("every_other"), "attention") == 0
    assert again(selective("core_attn"), "gemm") == 0
    assert again(selective("core_attn"), "attention") > 0


def test_every_other_repeats_all_that_memory_bounds() -> None:
    forward, backward = (
        [op for op in operations(stage_work(selective("every_other")), name) if isinstance(op, Kernel) and not op.shape]
        for name in ("forward", "backward_input")
    )
    of_layers = [op for op in forward if op.count == 8]
    assert of_layers and all(op in backward for op in of_layers)


def saved(one: Job) -> float:
    return peak_memory(one).activations


def test_what_is_repeated_is_not_kept() -> None:
    none = saved(Job(**(vars(selective("core_attn")) | {"recompute": "none"})))
    core, most = saved(selective("core_attn")), saved(selective("every_other"))
    whole = saved(Job(**(vars(selective("core_attn")) | {"recompute": "full"})))
    assert whole < most < core < none


@pytest.mark.parametrize(
    ("module", "model", "spared"),
    [
        # Two norms, 2048 tokens, 512 wide, 2 bytes; 8 layers.
        ("layernorm", llama(), 8 * 2 * 2048 * 512 * 2),
        # Outputs of the activation, of all copies: two experts a token.
        ("moe_act", mixtral(), 8 * 2 * 2048 * 1536 * 2),
        # Queries and keys of 48, values of 32, of 8 heads.
        ("mla_up_proj", llama(latent=LATENT, num_query_groups=8), 8 * 2048 * 8 * (48 + 48 + 32) * 2),
        ("mlp", mixtral(), 0),
        ("moe", llama(), 0),
    ],
)
def test_modules_spare_what_they_make(module: str, model: Any, spared: float) -> None:
    one = selective(module, model=model)
    blocks = Blocks(Share(one))
    layers = (layer for stage in split_layers(one) for chunk in stage for layer in blocks.in_chunk(chunk))
    assert sum(selective_recomputation(blocks.share, layer).spared * count for layer, count in layers) == spared


def test_experts_are_repeated_with_their_exchange() -> None:
    forward = operations(stage_work(selective("moe", model=mixtral(), dp=8, ep=8)), "backward_input")
    plain = operations(stage_work(selective("mlp", model=mixtral(), dp=8, ep=8)), "backward_input")
    assert sum(op.kind == "all_to_all" for op in forward) == 2 * sum(op.kind == "all_to_all" for op in plain)


@pytest.mark.parametrize(
    ("cells", "modules"),
    [
        ({}, "every_other"),
        ({"framework": "Megatron-Core r0.8"}, "core_attn"),
        ({"recompute": "selective (layernorm, mlp)"}, "layernorm mlp"),
        ({"recompute_modules": "mlp core_attn"}, "core_attn mlp"),
        ({"recompute": "full"}, ""),
    ],
)
def test_modules_are_those_of_the_row_else_of_its_stack(cells: dict[str, str], modules: str) -> None:
    read = read_row(LLAMA_8B | cells, 1, CONFIG).job
    assert read is not None
    assert software_use(read, CONFIG).recompute_modules == modules
    wrong = read_row(LLAMA_8B | {"recompute_modules": "norms"}, 1, CONFIG)
    assert wrong.reason.startswith("recompute_modules is 'norms', expected some of core_attn")


@pytest.mark.parametrize(("num_gpus", "gib"), [(8, 77.0), (128, 62.0)])
def test_memory_of_torchtitan_is_as_published(num_gpus: int, gib: float) -> None:
    # pytorch/torchtitan @b5bcd76 benchmarks/llama3_h100_202412_torchtitan.md, tables 1 and 3, with torch.compile.
    cells = LLAMA_8B | {"n_gpus": str(num_gpus), "dp": str(num_gpus), "gbs": str(2 * num_gpus), "launch": "compiled"}
    assert read_row(cells, 1, CONFIG).predict(CONFIG).memory_gib == pytest.approx(gib, rel=0.03)


def test_modules_of_a_point_keep_their_order_and_need_selective_recomputation() -> None:
    one = tiny_point(model=TINY, recompute="selective", recompute_modules=("mlp", "core_attn"))
    assert one.recompute_modules == ("core_attn", "mlp")
    assert "recompute_modules: [core_attn, mlp], the native engine has none" in str(refusal(fold(one)))
    assert fold(one.model_copy(update={"recompute": "full"})).recompute_modules == ()
