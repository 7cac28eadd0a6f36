"""DeepSpeed's engine in the loop of its getting-started guide, two micro-batches a step: `deepspeed_loop.py STEPS`."""

import sys
from typing import Any

import deepspeed
import torch
from torch import nn

CONFIG: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 2,
    "steps_per_print": 1,
    "zero_optimization": {"stage": 1},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
}


def main(num_steps: int) -> None:
    # Else its all-reduce through shared memory is compiled, for a minute, on a machine that has not done so before.
    deepspeed.ops.__compatible_ops__ = {}
    deepspeed.init_distributed("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
    for _ in range(2 * num_steps):
        batch = torch.randn(8, 64, device=engine.device)
        loss = (engine(batch) - batch).pow(2).mean()
        engine.backward(loss)
        engine.step()


if __name__ == "__main__":
    main(int(sys.argv[-1]))
