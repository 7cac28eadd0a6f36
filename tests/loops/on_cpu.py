"""Run a script of Megatron-LM, written for CUDA and NCCL, on the CPU over gloo: `on_cpu.py SCRIPT [ARGUMENTS]`.

Replaced are the device, the back end, what is asked of the GPU, and `nvcc`, whose version Megatron-LM reads before it
compiles nothing. The script and all of Megatron-LM stay as they are.
"""

import os
import runpy
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.utils import cpp_extension

NVCC = '#!/bin/sh\necho "Cuda compilation tools, release 12.4, V12.4.131"\n'
GPU = SimpleNamespace(name="none", major=8, minor=0, multi_processor_count=1, total_memory=1 << 30)


def main() -> None:
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # read as Megatron-Core is imported
    from triplepoint.launch.engines.megatron.cuda_stand_ins import stand_in_for_cuda

    stand_in_for_cuda()
    _cuda()
    _on_cpu(torch, "rand", "randn", "randint", "eye")
    _on_cpu(torch.Tensor, "to")
    _on_cpu(torch.nn.Module, "to")
    start = dist.init_process_group
    dist.init_process_group = lambda *_, **named: start(**(named | {"backend": "gloo", "device_id": None}))
    sys.argv = sys.argv[1:]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    with tempfile.TemporaryDirectory() as folder:
        nvcc = Path(folder) / "bin" / "nvcc"
        nvcc.parent.mkdir()
        nvcc.write_text(NVCC)
        nvcc.chmod(0o755)
        cpp_extension.CUDA_HOME = folder
        runpy.run_path(sys.argv[0], run_name="__main__")


def _cuda() -> None:
    """Answer what Megatron-LM asks of the GPU; torch itself is told that there is none."""
    answers: dict[str, Any] = dict.fromkeys(("memory_allocated", "max_memory_allocated", "memory_reserved"), 0)
    answers |= {"max_memory_reserved": 0, "set_device": None, "reset_peak_memory_stats": None, "device_count": 8}
    answers |= {"get_device_capability": (8, 0), "get_device_properties": GPU, "memory_stats": defaultdict(int)}
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *_, answer=answer, **__: answer)
    torch.cuda.is_available = lambda: "/megatron/" in sys._getframe(1).f_code.co_filename
    for name in ("IntTensor", "FloatTensor", "LongTensor", "DoubleTensor"):
        setattr(torch.cuda, name, getattr(torch, name))
    torch.nn.Module.cuda = lambda self, *_: self


def _on_cpu(owner: Any, *names: str) -> None:
    for name in names:
        setattr(owner, name, _moved(getattr(owner, name)))


def _moved(call: Any) -> Any:
    def moved(*arguments: Any, **named: Any) -> Any:
        return call(*map(_device, arguments), **{key: _device(value) for key, value in named.items()})

    return moved


def _device(word: Any) -> Any:
    return torch.device("cpu") if isinstance(word, str | torch.device) and str(word).startswith("cuda") else word


if __name__ == "__main__":
    main()
