"""What the native engine refuses, before anything is launched."""

import subprocess
import sys
from typing import Any

import pytest

from tests.points import refused
from tests.unit.launch.engines.native_points import GPT, LLAMA, MOE, make_point
from triplepoint.config.model import ModelConfig
from triplepoint.launch.engines import padded_vocab_size

BIASED_MOE = ModelConfig.model_validate({**MOE.model_dump(), "name": "biased", "add_bias": True})
TIED = LLAMA.model_copy(update={"tie_embeddings": True})
FSDP = {"data_parallel_sharding": "optim_grads_params"}

REFUSED: list[tuple[ModelConfig, dict[str, Any], str]] = [
    (LLAMA, {"cp": 2}, "no context parallelism (cp: 2); set cp: 1"),
    (LLAMA, {"precision": "fp8"}, "bf16 or fp32, not fp8; set precision: bf16"),
    (LLAMA, {"precision": "fp16"}, "bf16 or fp32, not fp16; set precision: bf16"),
    (LLAMA, {"tp": 2, "overlap": ("tp",)}, "remove tp from overlap"),
    (LLAMA, {"tp": 3}, "num_attention_heads 4 is not divisible by tp: 3"),
    (LLAMA.model_copy(update={"num_query_groups": 2}), {"tp": 4}, "num_query_groups 2"),
    (LLAMA.model_copy(update={"ffn_hidden_size": 66}), {"tp": 4}, "ffn_hidden_size 66"),
    (
        LLAMA,
        {"tp": 4, "sequence_parallel": True, "sequence_length": 30},
        "needs sequence_length 30 divisible by tp*cp = 4",
    ),
    (LLAMA, {"vp": 2}, "vp: 2 needs pipeline parallelism"),
    (LLAMA, {"pp": 2}, "pp: 2 needs a schedule"),
    (LLAMA, {"pp": 2, "vp": 2, "schedule": "1f1b"}, "1f1b has one stage per rank, vp is 2"),
    (LLAMA, {"pp": 4, "vp": 2, "schedule": "interleaved_1f1b"}, "num_layers 4 is not divisible by pp*vp = 4*2 = 8"),
    (TIED, {"pp": 2, "schedule": "1f1b"}, "set tie_embeddings: false or pp: 1"),
    (LLAMA, {"pp": 2, "schedule": "zero_bubble", "recompute": "full"}, "set recompute: none"),
    (LLAMA, {"pp": 2, "schedule": "zero_bubble", "recompute": "selective"}, "set recompute: none"),
    (LLAMA, {"pp": 2, "dp": 2, "schedule": "zero_bubble", **FSDP}, "set data_parallel_sharding: optim_grads"),
    (LLAMA, {"pp": 4, "schedule": "1f1b", "micro_batch_size": 4}, "as many micro-batches as stages, 4, and has 2"),
    (
        LLAMA,
        {"pp": 2, "vp": 2, "schedule": "interleaved_1f1b", "global_batch_size": 5},
        "num_microbatches 5 divisible by pp: 2",
    ),
    (LLAMA, {"pp": 2, "schedule": "zero_bubble", "global_batch_size": 5}, "5 micro-batches over 2 rounds"),
    (LLAMA, {"dp": 2, "ep": 2}, "tiny-llama has no experts; set ep: 1"),
    (MOE, {"dp": 2, "ep": 4}, "dp 2 is not divisible by ep: 4"),
    (MOE, {"dp": 8, "ep": 8}, "num_experts 4 is not divisible by ep: 8"),
    (MOE, {"dp": 2, "ep": 2, "tp": 2}, "set sequence_parallel: true"),
    (MOE, {"tp": 4, "ep": 2, "etp": 2, "sequence_parallel": True}, "set etp: 1 or 4, and an ep that divides dp: 1"),
    (BIASED_MOE, {"tp": 2}, "set add_bias: false, or etp: 1"),
]


@pytest.mark.parametrize(("model", "changes", "reason"), REFUSED, ids=[reason for *_, reason in REFUSED])
def test_refused_says_what_to_change(model: ModelConfig, changes: dict[str, Any], reason: str) -> None:
    found = refused(make_point(model, **changes))
    assert found is not None and reason in found
    assert "\n" not in found


def test_refused_passes_what_works() -> None:
    assert refused(make_point(LLAMA, precision="bf16")) is None
    assert refused(make_point(GPT, tp=4, sequence_parallel=True, overlap=("grad", "param"))) is None
    assert refused(make_point(LLAMA, pp=2, dp=1, schedule="zero_bubble", **FSDP)) is None


def test_padded_vocab_size_is_the_next_multiple_of_128() -> None:
    assert [padded_vocab_size(size) for size in (256, 257, 50257, 128256)] == [256, 384, 50304, 128256]


def test_engine_does_not_import_torch() -> None:
    assert refused(make_point()) is None
    code = "import sys, triplepoint.launch.engines.native; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
