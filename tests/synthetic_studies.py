"""Made-up studies: a smoke study on CPUs, the 32-GPU study of the reference paper, and a single point."""

from tests.synthetic import CPU, H200, Spec

FSDP = {"data_parallel_sharding": "optim_grads_params"}


def pipelined(**degrees: int) -> dict:
    return degrees | {"schedule": "1f1b"}


def cpu_smoke() -> list[Spec]:
    layouts = {
        "tiny-llama": [{"dp": 2}, {"tp": 2}, pipelined(pp=2), {"dp": 2} | FSDP, pipelined(tp=2, pp=2)],
        "tiny-mixtral": [{"dp": 2}, {"dp": 2, "ep": 2}],
    }
    specs = []
    for model, model_layouts in layouts.items():
        for index, layout in enumerate(model_layouts):
            for mbs in (1, 2, 4):
                status = "oom" if (index, mbs) == (3, 4) else "ok"
                step_ms = 150 + 60 * index + 90 / mbs
                specs.append(Spec(model, layout, mbs, status, step_ms=step_ms))
    specs.append(Spec("tiny-llama", {"dp": 2}, 1, repeat=2, step_ms=255))
    return specs


PAPER = {
    "gpt3-175b": [
        *(pipelined(tp=tp, pp=32 // tp) for tp in (2, 4, 8, 1)),
        {"tp": 8, "dp": 4} | FSDP,
    ],
    "llama3-70b": [
        *(pipelined(tp=tp, pp=16 // tp, dp=2) for tp in (8, 4, 2, 1)),
        {"tp": 8, "dp": 4} | FSDP,
    ],
    "mixtral-8x7b": [{"dp": 32, "ep": 8}, {"tp": 2, "dp": 16, "ep": 4}],
    "mixtral-8x22b": [pipelined(pp=4, dp=8, ep=8), pipelined(tp=2, pp=2, dp=8, ep=8), {"tp": 4, "dp": 8, "ep": 8}],
}
STEP_MS = {"gpt3-175b": 26000, "llama3-70b": 24000, "mixtral-8x7b": 5200, "mixtral-8x22b": 12500}


def paper_status(model: str, index: int, mbs: int, recompute: str) -> str:
    if model == "mixtral-8x7b" and mbs == 8:
        return "invalid"
    if model == "gpt3-175b" and (index == 3 and recompute == "none" or mbs == 8 and index in (0, 3)):
        return "oom"
    return "oom" if model == "llama3-70b" and mbs == 8 and index == 3 else "ok"


def paper_h200(engine: str = "native") -> list[Spec]:
    specs = []
    for model, layouts in PAPER.items():
        for index, layout in enumerate(layouts):
            for mbs, recompute in ((1, "none"), (1, "full"), (2, "full"), (4, "full"), (8, "full")):
                step_ms = STEP_MS[model] * (1 + 0.17 * index) / mbs**0.15 * (1.25 if recompute == "full" else 1)
                status = paper_status(model, index, mbs, recompute)
                specs.append(Spec(model, layout, mbs, status, recompute, cluster=H200, step_ms=step_ms, engine=engine))
    return specs


def one_point() -> list[Spec]:
    return [Spec("tiny-llama", {"dp": 2}, cluster=CPU)]
