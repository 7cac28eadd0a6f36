"""Published measurements of inference.

Measured with TensorRT-LLM 0.6.1 (time to the first token: 0.5) in static batches; fp8 with an fp8 cache on H100.
Source: NVIDIA/TensorRT-LLM docs/source/performance.md at 138f96d.

Batches of models with grouped queries are left out of comparisons. The prediction reads keys once for all heads that
share them, as the release after the measured one does. Source: its README of 2023/12/04, "2.4x faster on Llama-70B
with recent improvements to TensorRT-LLM GQA".
"""

from functools import lru_cache
from pathlib import Path

from triplepoint.calibrate import inference
from triplepoint.calibrate.inference import ServingCase

CONFIG = Path("config")
TABLE = Path("tests/data/inference/tensorrt_llm.csv")


@lru_cache
def read_cases() -> tuple[ServingCase, ...]:
    """Return all rows."""
    return tuple(inference.read_cases(TABLE, CONFIG))


def is_shared(case: ServingCase) -> bool:
    """Return whether query heads of the model share keys."""
    return case.job.model.num_query_groups < case.job.model.num_attention_heads
