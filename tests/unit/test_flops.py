"""Model FLOPs by task, counted by hand."""

from pathlib import Path
from typing import Any

import pytest

from triplepoint.config.catalogue import Catalogue
from triplepoint.config.model import ModelConfig
from triplepoint.config.task import TARGETS, Inference, Lora
from triplepoint.flops import inference_flops_per_token, lora_flops_per_token, num_adapter_parameters
from triplepoint.metrics import flops_per_token

CATALOGUE = Catalogue(Path("config"))
SMALL: dict[str, Any] = {
    "name": "small",
    "source": "made up for this test",
    "num_layers": 2,
    "hidden_size": 8,
    "ffn_hidden_size": 16,
    "num_attention_heads": 4,
    "num_query_groups": 2,
    "vocab_size": 32,
    "sequence_length": 6,
    "activation": "swiglu",
    "normalization": "rmsnorm",
    "position_embedding": "rope",
}
MODEL = ModelConfig(**SMALL)
# Query 64, key and value 32 each, output 64; gate, up and down 128 each: 576 a layer. The output layer has 256.
LAYERS, HEAD = 2 * 576, 256
# A token with k keys: k products with 4 heads of 2 for scores, and for values, in 2 layers.
SCORES = 2 * 2 * 8


def test_num_adapter_parameters_by_hand() -> None:
    # Query 8 + 8, key and value 8 + 4 each; output 8 + 8; gate and up 8 + 16 each; down 16 + 8.
    for targets, width in ((("linear_qkv",), 40), (("linear_proj",), 16), (("linear_fc1",), 48), (TARGETS, 128)):
        assert num_adapter_parameters(MODEL, Lora(rank=3, alpha=1.0, targets=targets)) == 3 * 2 * width


def test_lora_flops_by_hand() -> None:
    # Weights twice (forward, gradient of the input), scores and adapters three times, two FLOPs each.
    lora = Lora(rank=3, alpha=1.0, targets=TARGETS)
    assert lora_flops_per_token(MODEL, 6, lora) == 2 * (2 * (LAYERS + HEAD) + 3 * (6 * SCORES + 768))


def test_inference_flops_by_hand() -> None:
    # 4 tokens read and 2 made after the first: 6 pass the layers; scores over 4 keys four times, then over 5 and 6.
    macs = 6 * LAYERS + SCORES * (4 * 4 + 5 + 6) + 3 * HEAD
    assert inference_flops_per_token(MODEL, Inference(prompt_tokens=4, output_tokens=3)) == 2 * macs / 3


@pytest.mark.parametrize(("prompt", "made"), [(1, 2000), (127, 2), (128, 1), (4000, 200)])
@pytest.mark.parametrize("name", ["gpt-oss-20b", "gemma3-27b", "llama3-8b"])
def test_inference_flops_are_those_of_each_token(name: str, prompt: int, made: int) -> None:
    """Windows of 128 and 1024 tokens: a sum token by token, of a model without multi-token prediction."""
    model = CATALOGUE.model(name)
    head = model.hidden_size * model.vocab_size

    def pass_macs(num_keys: int) -> float:
        return flops_per_token(model, num_keys) / 6 - head

    macs = prompt * pass_macs(prompt) + sum(pass_macs(prompt + after) for after in range(1, made)) + head * made
    found = inference_flops_per_token(model, Inference(prompt_tokens=prompt, output_tokens=made))
    assert found == pytest.approx(2 * macs / made, rel=1e-9)


def test_adapters_of_routed_experts_are_none() -> None:
    moe = ModelConfig(**SMALL, moe={"num_experts": 4, "top_k": 2, "capacity_factor": None})
    assert num_adapter_parameters(moe, Lora(rank=3, alpha=1.0, targets=("linear_fc1", "linear_fc2"))) == 0
