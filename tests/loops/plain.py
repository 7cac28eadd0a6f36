"""Data-parallel training with torch alone, a log line a step: `plain.py STEPS [SECONDS]`."""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn


def main(num_steps: int, extra_s: float) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
    model = nn.parallel.DistributedDataParallel(layers)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(1, num_steps + 1):
        batch = torch.randn(16, 64)
        loss = (model(batch) - batch).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(extra_s)
        if dist.get_rank() == 0:
            print(f" iteration {step:8d}/{num_steps:8d} | lm loss: {loss.item():.6E} |", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]) if sys.argv[2:] else 0.0)
