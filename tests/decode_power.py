"""Measured and predicted power of GPUs during decoding: `tests/data/node_power/decode_h100.csv`."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.synthetic import CONFIG
from triplepoint.published.rows import read_row

FILE = Path(__file__).parent / "data" / "node_power" / "decode_h100.csv"
_PROMPT_TOKENS = 512
"""Length of the prompt. Assumed, because none is published."""
_NAMES = {
    "Llama-3.1-8B-Instruct": "Llama3-8B",
    "Llama-3.3-70B-Instruct": "Llama3-70B",
    "Llama-4-Scout-17B-16E-Instruct": "Llama4-Scout",
    "Llama-4-Maverick-17B-128E-Instruct-FP8": "Llama4-Maverick",
    "Qwen3-30B-A3B-Instruct-2507": "Qwen3-30B-A3B",
    "Qwen3-30B-A3B-Thinking-2507": "Qwen3-30B-A3B",
    "gemma-3-27b-it": "Gemma3-27B",
}
"""Names of models in `config/published/models.yaml`, if they differ from those of the file."""


@dataclass(frozen=True)
class Decoded:
    """A row of the file.

    Attributes:
        model: Name of the model in the file.
        batch_size: Number of sequences decoded together by all GPUs.
        measured_w: Measured mean power of a GPU. Unit: W.
        predicted_w: Predicted mean power of a GPU. Unit: W.
        low_w: Lower end of the 90 % interval of the prediction. Unit: W.
        high_w: Upper end of that interval. Unit: W.
    """

    model: str
    batch_size: int
    measured_w: float
    predicted_w: float
    low_w: float
    high_w: float

    @property
    def error(self) -> float:
        """Predicted over measured power, less 1."""
        return self.predicted_w / self.measured_w - 1.0

    @property
    def is_covered(self) -> bool:
        """Whether the measured power lies in the interval."""
        return self.low_w <= self.measured_w <= self.high_w


def decoded() -> Iterator[Decoded]:
    """Yield all rows."""
    with FILE.open(newline="") as file:
        for number, row in enumerate(csv.DictReader(file), 2):
            dp = int(row["num_gpus"]) if int(row["ep"]) > 1 else 1
            batch_size = max(round(float(row["global_batch"]) / dp), 1) * dp
            cells = {
                "id": row["id"],
                "model": _NAMES.get(row["model"], row["model"]),
                "gpu": "H100-SXM-80GB",
                "n_gpus": row["num_gpus"],
                "tp": "1" if dp > 1 else row["tp"],
                "ep": row["ep"],
                "gbs": str(batch_size),
                "seq": str(_PROMPT_TOKENS),
                "output_tokens": row["output_tokens"],
                "task": "inference",
                "precision": "fp8" if row["precision"] == "fp8" else "bf16",
                "framework": "vLLM",
            }
            power = read_row(cells, number, CONFIG).predict(CONFIG).power
            yield Decoded(
                row["model"], batch_size, float(row["gpu_power_w"]), power.gpu_power_w, power.gpu_power_lo_w,
                power.gpu_power_hi_w,
            )  # fmt: skip
