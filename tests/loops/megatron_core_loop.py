"""A small GPT on Megatron-Core in the loop of its quick-start guide: `megatron_core_loop.py STEPS [TP]`."""

import os
import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig

from triplepoint.launch.engines.megatron.cuda_stand_ins import stand_in_for_cuda

LENGTH, VOCABULARY = 32, 128


def build() -> DistributedDataParallel:
    config = TransformerConfig(
        num_layers=2, hidden_size=32, num_attention_heads=4, use_cpu_initialization=True,
        pipeline_dtype=torch.float32, finalize_model_grads_func=finalize_model_grads,
    )  # fmt: skip
    model = GPTModel(
        config, get_gpt_layer_local_spec(normalization="LayerNorm"), vocab_size=VOCABULARY, max_sequence_length=LENGTH
    )
    buffers = DistributedDataParallelConfig(grad_reduce_in_fp32=False, use_distributed_optimizer=False)
    return DistributedDataParallel(config, buffers, model)


def forward_step(batches: Iterator[torch.Tensor], model: Any) -> tuple[torch.Tensor, Any]:
    tokens = next(batches)
    mask = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool).triu(1)
    losses = model(tokens, torch.arange(LENGTH).expand_as(tokens), mask, labels=tokens)
    return losses, lambda per_token: (per_token.float().mean(), {"lm loss": per_token.float().mean().detach()})


def main(num_steps: int, tp: int) -> None:
    stand_in_for_cuda()
    dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    parallel_state.initialize_model_parallel(tp, 1)
    model_parallel_cuda_manual_seed(123)
    model = build()
    optimizer = torch.optim.Adam(model.parameters())
    run = get_forward_backward_func()
    for step in range(1, num_steps + 1):
        optimizer.zero_grad()
        model.zero_grad_buffer()
        batches = iter([torch.randint(0, VOCABULARY, (4, LENGTH)) for _ in range(2)])
        found = run(
            forward_step_func=forward_step, data_iterator=batches, model=model, num_microbatches=2, seq_length=LENGTH,
            micro_batch_size=4, decoder_seq_length=LENGTH, forward_only=False,
        )  # fmt: skip
        for parameter in model.parameters():
            parameter.grad = parameter.main_grad
        optimizer.step()
        if dist.get_rank() == 0:
            print(f" iteration {step:8d}/{num_steps:8d} | lm loss: {float(found[-1]['lm loss']):.6E} |", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else 1)
