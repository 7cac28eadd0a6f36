"""Published measurements of inference, each beside what is predicted of it.

Measured with TensorRT-LLM 0.6.1 (first tokens: 0.5), static batches; fp8 with an fp8 cache on H100. Source:
NVIDIA/TensorRT-LLM docs/source/performance.md at 138f96d.
"""

import csv
import math
from functools import lru_cache
from pathlib import Path

from triplepoint.config.catalogue import Catalogue
from triplepoint.config.point import Layout
from triplepoint.simulate.calibration.serving import ServingCase
from triplepoint.simulate.inference import Serving, predict_inference
from triplepoint.simulate.job import Job
from triplepoint.simulate.predict.known import find_known
from triplepoint.simulate.predict.machines import usual_fabric
from triplepoint.simulate.predict.spelling import SaidNetwork
from triplepoint.simulate.stacks import find_stack

CONFIG = Path("config")
TABLE = Path("tests/data/inference/tensorrt_llm.csv")
SELECTED = f"{TABLE}, without batches of models with grouped queries"
"""What intervals are made from. NVIDIA/TensorRT-LLM's README of 2023/12/04, "2.4x faster on Llama-70B with recent
improvements to TensorRT-LLM GQA", is of the release after: keys are read once for the heads that share them here."""


@lru_cache
def read_cases() -> tuple[ServingCase, ...]:
    """Return all rows."""
    catalogue = Catalogue(CONFIG)
    with (Path(__file__).parents[1] / TABLE).open(encoding="utf-8") as lines:
        return tuple(_case(row, catalogue) for row in csv.DictReader(lines))


def is_shared(case: ServingCase) -> bool:
    """Return whether heads of the model share keys."""
    return case.job.model.num_query_groups < case.job.model.num_attention_heads


def is_selected(case: ServingCase) -> bool:
    """Return whether a row is one that intervals are made from."""
    return case.is_first_token or not is_shared(case)


def _case(row: dict[str, str], catalogue: Catalogue) -> ServingCase:
    known, card, tp = find_known(row["model"], CONFIG), catalogue.gpu(row["gpu"]), int(row["tp"])
    assert known and known.model
    fabric = usual_fabric(card, 8, SaidNetwork(), CONFIG)
    stack, precision = "TensorRT-LLM", row["precision"]
    software = find_stack(stack, CONFIG)
    job = Job(known.model, Layout(tp=tp), 1, 1, 1, card, fabric, software, precision=precision, stack=stack)
    numbers = (int(row[name]) for name in ("prompt_tokens", "output_tokens", "batch_size"))
    serving = Serving(*numbers, cache_element=1 if row["precision"] == "fp8" else 2)
    step = predict_inference(job, serving, config=CONFIG)
    if measured := row["time_to_first_token_s"]:
        return ServingCase(job, serving, step, math.log(step.prefill_s / float(measured)), True)
    return ServingCase(job, serving, step, math.log(float(row["tokens_per_s_per_gpu"]) * tp / step.tokens_per_s), False)
