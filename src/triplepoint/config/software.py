"""Settings for behaviour of the software that differs from the usual behaviour of its stack."""

from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Field

from triplepoint.config.base import Featured, Need, Setting

Attention = Literal["unfused", "flash1", "flash2", "flash3", "cudnn", "ck"]
Launch = Literal["eager", "compiled", "graphs"]
Fp8Recipe = Literal["delayed", "tensorwise", "rowwise", "blockwise", "mxfp8"]
RecomputeModule = Literal["core_attn", "mla_up_proj", "layernorm", "moe_act", "mlp", "moe", "every_other"]
Moments = Literal["fp32", "bf16", "8bit"]
Dispatch = Literal["all_to_all", "once_per_node"]
DispatchPrecision = Literal["bf16", "fp8"]

SIMULATED_ONLY = ("simulated",)
"""Engines that support these settings; in the others the libraries decide."""


HAS_EXPERTS = Need(lambda point: point.model.moe is not None, "a model with experts")
_IN_FP8 = Need(lambda point: point.precision == "fp8", "precision: fp8")
_IS_TRAINING = Need(lambda point: point.task != "inference", "training")


def _has_modules(point: Any) -> bool:
    """Return whether recomputation is selective and the model has all modules of `recompute_modules`."""
    missing = {"mla_up_proj"} if point.model.latent is None else set()
    if point.model.moe is None:
        missing |= {"moe", "moe_act"}
    return point.recompute == "selective" and not missing & {*point.recompute_modules}


_HAS_MODULES = Need(_has_modules, "recompute: selective and a model with these modules")


def _has_dispatch(point: Any) -> bool:
    """Return whether tokens are sent to experts on other ranks."""
    return point.model.moe is not None and point.layout.ep > 1


class Software(Featured):
    """Behaviour of the software of a run; None: as `config/calibration/stacks.yaml` says for the stack."""

    attention: Annotated[
        Attention | None,
        Setting(
            "Attention kernels: `unfused`, scores written to memory and read back; `flash1` to `flash3`, versions of "
            "FlashAttention; `cudnn`; `ck`, Composable Kernel of ROCm. None: as the stack.",
            label={name: name for name in get_args(Attention)},
            words={name: f"{name} attention" for name in get_args(Attention)},
            engines=SIMULATED_ONLY,
            came_later=True,
        ),
    ] = None

    launch: Annotated[
        Launch | None,
        Setting(
            "How the host launches kernels: `eager`, one after the other from Python; `compiled`, torch.compile, which "
            "also fuses norms, rotary embedding, activation and loss into one kernel each; `graphs`, CUDA graphs of "
            "the eager kernels. None: as the stack.",
            label={"eager": "eager", "compiled": "comp", "graphs": "graphs"},
            words={"eager": "eager", "compiled": "torch.compile", "graphs": "CUDA graphs"},
            engines=SIMULATED_ONLY,
            came_later=True,
        ),
    ] = None
    fp8_recipe: Annotated[
        Fp8Recipe | None,
        Setting(
            "Scaling of fp8 numbers: one scale per tensor, from earlier steps (`delayed`) or from the tensor itself "
            "(`tensorwise`); one per row (`rowwise`); one per 128 numbers (`blockwise`); one per 32 numbers (`mxfp8`). "
            "None: as the stack. No effect without precision fp8.",
            label={name: name for name in get_args(Fp8Recipe)},
            words={name: f"{name} scales" for name in get_args(Fp8Recipe)},
            needs=_IN_FP8,
            fold=lambda point: point.fp8_recipe if point.precision == "fp8" else None,
            engines=SIMULATED_ONLY,
            came_later=True,
        ),
    ] = None
    recompute_modules: Annotated[
        tuple[RecomputeModule, ...],
        AfterValidator(lambda chosen: tuple(name for name in get_args(RecomputeModule) if name in chosen)),
        Setting(
            "Modules that `recompute: selective` recomputes, with the names of Megatron-LM: `core_attn`, "
            "`mla_up_proj`, `layernorm`, `moe_act`, `mlp` (of layers without experts), `moe`; or `every_other`, as "
            "torchtitan: memory-bound kernels and every second GEMM. Empty: as the stack. No effect on other "
            "recomputation.",
            label=lambda row: "-".join(name.replace("_", "") for name in row["recompute_modules"]),
            words=lambda row: " ".join(["of", *row["recompute_modules"]]) if row["recompute_modules"] else "",
            needs=_HAS_MODULES,
            fold=lambda point: point.recompute_modules if point.recompute == "selective" else (),
            engines=SIMULATED_ONLY,
            came_later=True,
        ),
    ] = ()
    optimizer_moments: Annotated[
        Moments | None,
        Setting(
            "Number format of Adam's two moments: `fp32`, `bf16`, or `8bit` in blocks with a scale each. None: as the "
            "stack.",
            label={name: f"adam{name}" for name in get_args(Moments)},
            words={name: f"{name} moments" for name in get_args(Moments)},
            needs=_IS_TRAINING,
            fold=lambda point: point.optimizer_moments if point.task != "inference" else None,
            engines=SIMULATED_ONLY,
            came_later=True,
        ),
    ] = None
    dispatch: Annotated[
        Dispatch | None,
        Setting(
            "How tokens are sent to experts on other ranks: `all_to_all`, a copy for each expert; `once_per_node`, one "
            "copy to each node, forwarded inside it to the ranks that need it, as DeepEP and HybridEP do. None: as the "
            "stack. No effect at ep 1.",
            label={"all_to_all": "a2a", "once_per_node": "once"},
            words={"all_to_all": "all-to-all of copies", "once_per_node": "tokens once per node"},
            needs=HAS_EXPERTS,
            fold=lambda point: point.dispatch if _has_dispatch(point) else None,
            engines=SIMULATED_ONLY,
            came_later=True,
        ),
    ] = None
    dispatch_precision: Annotated[
        DispatchPrecision | None,
        Setting(
            "Number format of tokens sent to experts; results return in 16 bits. None: as the stack. No effect at ep "
            "1.",
            label={"bf16": "send16", "fp8": "send8"},
            words={"bf16": "16-bit dispatch", "fp8": "fp8 dispatch"},
            needs=HAS_EXPERTS,
            fold=lambda point: point.dispatch_precision if _has_dispatch(point) else None,
            engines=SIMULATED_ONLY,
            came_later=True,
        ),
    ] = None
    token_nodes: Annotated[
        Annotated[int, Field(gt=0, le=1_000_000, strict=True)] | None,
        Setting(
            "Most nodes that hold the experts of one token (group-limited routing; 4 in DeepSeek-V3). None: no limit. "
            "No effect at ep 1.",
            "1",
            "nodes{}",
            words=lambda row: f"experts on {row['token_nodes']} nodes" if row["token_nodes"] else "",
            needs=HAS_EXPERTS,
            fold=lambda point: point.token_nodes if _has_dispatch(point) else None,
            engines=SIMULATED_ONLY,
            came_later=True,
        ),
    ] = None
