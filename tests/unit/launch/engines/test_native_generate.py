"""LoRA and generation against what their definitions say, on one rank without process groups."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.unit.launch.engines.native_points import GPT, GQA, LLAMA, make_point
from tests.unit.launch.engines.test_native_model import CPU, filled, make_stage
from triplepoint.config.model import ModelConfig
from triplepoint.config.task import TARGETS, Inference, Lora, Target
from triplepoint.errors import UserError
from triplepoint.launch.engines.native import generate
from triplepoint.launch.engines.native.model import Linear, Stage
from triplepoint.launch.engines.native.parameters import Adapter, add_adapters, freeze, weights_of


def adapted(targets: tuple[Target, ...] = TARGETS) -> Stage:
    stage = make_stage(LLAMA)
    with torch.device("meta"):
        add_adapters(stage.layers.values(), Lora(rank=4, alpha=8.0, targets=targets))
    filled(stage)
    freeze(stage, torch.float32)
    return stage


def test_lora_gradients_and_optimizer_are_of_adapters_alone() -> None:
    stage, tokens = adapted(), torch.arange(32).unsqueeze(0)
    trained = {name: parameter for name, parameter in stage.named_parameters() if parameter.requires_grad}
    assert all(".adapter." in name for name in trained)
    optimizer = torch.optim.AdamW(trained.values(), weight_decay=0.0)
    stage(tokens).square().mean().backward()
    for name, parameter in stage.named_parameters():
        assert (parameter.grad is not None) == (".adapter." in name), name
    before = {name: parameter.clone() for name, parameter in stage.named_parameters()}
    optimizer.step()
    assert len(optimizer.state) == len(trained) == 2 * 4 * 7
    changed = {name for name, parameter in stage.named_parameters() if not torch.equal(parameter, before[name])}
    # `down` has no gradient while `up` is zero.
    assert changed == {name for name in trained if name.endswith("up")}


def test_lora_adds_the_scaled_product_of_its_matrices() -> None:
    linear, lora = Linear(6, 5, bias=False), Lora(rank=2, alpha=3.0, targets=TARGETS)
    adapter = Adapter(6, 5, lora)
    torch.nn.init.normal_(adapter.down), torch.nn.init.normal_(adapter.up)
    x = torch.randn(3, 6)
    plain = linear(x)
    linear.add_module("adapter", adapter)
    torch.testing.assert_close(linear(x), plain + 1.5 * x @ (adapter.up @ adapter.down).T)


@pytest.mark.parametrize(("targets", "per_layer"), [(("linear_qkv",), 3), (("linear_proj", "linear_fc2"), 2)])
def test_lora_targets_are_the_layers_asked_for(targets: tuple[Target, ...], per_layer: int) -> None:
    assert sum(isinstance(module, Adapter) for module in adapted(targets).modules()) == 4 * per_layer


def generator(model: ModelConfig, monkeypatch: pytest.MonkeyPatch, **asked: int) -> tuple[generate.Generator, Stage]:
    stage, reference = make_stage(model), make_stage(model)
    monkeypatch.setattr(generate, "build_stages", lambda *_: {0: stage})
    point = make_point(model, task="inference", inference=Inference(**asked), micro_batch_size=3, global_batch_size=3)
    mesh: Any = SimpleNamespace(tp_group=None, world=None)
    recorder: Any = SimpleNamespace(first_token=lambda: None)
    return generate.Generator(point, mesh, CPU, recorder), reference


@pytest.mark.parametrize("model", [LLAMA, GPT, GQA], ids=lambda model: model.name)
@pytest.mark.parametrize("together", [1, 3])
def test_generation_with_caches_is_that_without(
    model: ModelConfig, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Inference, "prompts_together", together)
    made, stage = generator(model, monkeypatch, prompt_tokens=20, output_tokens=6)
    tokens = torch.randint(model.vocab_size, (3, 32), generator=torch.Generator().manual_seed(3))
    text = tokens[:, :20]
    for _ in range(6):
        # What stands behind a token does not change what is said of it.
        padded = torch.nn.functional.pad(text, (0, 32 - text.shape[1]))
        likeliest = stage(padded)[:, text.shape[1] - 1, : model.vocab_size].argmax(-1, keepdim=True)
        text = torch.cat([text, likeliest], dim=1)
    for _ in range(2):  # caches of a batch are those of the next
        assert made.step(tokens, tokens).tolist() == text[:, 20:].tolist()


def save(path: Path, stage: Stage, **changes: torch.Tensor) -> str:
    torch.save({name: value.detach() for name, value in stage.state_dict().items()} | changes, path)
    return str(path)


def test_weights_of_a_checkpoint_are_those_saved(tmp_path: Path) -> None:
    stage = make_stage(LLAMA)
    gain = torch.full((32,), 3.0)
    point = make_point(LLAMA, weights=save(tmp_path / "model.pt", stage, **{"norm.weight": gain}))
    weights = weights_of(point, CPU)
    assert torch.equal(weights("norm.weight", (32,)), gain)
    # Adapters are never in it.
    assert not weights("layers.0.attention.query.adapter.up", (32, 4)).any()


def test_weights_of_a_checkpoint_without_padding_are_padded(tmp_path: Path) -> None:
    model = LLAMA.model_copy(update={"vocab_size": 250})
    rows = torch.randn(250, 32)
    point = make_point(model, weights=save(tmp_path / "model.pt", make_stage(model), **{"head.weight": rows}))
    found = weights_of(point, CPU)("head.weight", (256, 32))
    assert torch.equal(found[:250], rows)
    assert not found[250:].any()


@pytest.mark.parametrize(
    ("name", "shape", "says"),
    [
        ("norm.weight", (64,), "norm.weight has shape (32,), tiny-llama has (64,)"),
        ("layers.9.attention_norm.weight", (32,), "has no layers.9.attention_norm.weight"),
    ],
)
def test_weights_of_a_wrong_checkpoint_say_so(name: str, shape: tuple[int, ...], says: str, tmp_path: Path) -> None:
    weights = weights_of(make_point(LLAMA, weights=save(tmp_path / "model.pt", make_stage(LLAMA))), CPU)
    with pytest.raises(UserError) as caught:
        weights(name, shape)
    message = str(caught.value)
    assert says in message
    assert message.endswith("use a checkpoint of tiny-llama, or weights: random")


@pytest.mark.parametrize("content", [None, b"", b"not a checkpoint", b"PK\x03\x04 cut off"])
def test_weights_of_no_checkpoint_say_so_in_one_line(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        weights_of(make_point(LLAMA, weights=str(path)), CPU)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
