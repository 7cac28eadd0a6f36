"""Parts of a step and kernels by hand: what each contributes, what is matched with what, and that all adds up."""

import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triplepoint.compare.comparison import about_profiled
from triplepoint.compare.kernels import kernel_differences
from triplepoint.compare.parts import UNPROFILED, Contribution, StepDifference, step_difference
from triplepoint.compare.sides import Side
from triplepoint.compare.traced import KernelName, KernelTime, Part, Traced, of_repeats, part_of
from triplepoint.effects.samples import unpaired
from triplepoint.trace.rank_results import Job, RankSummary

GEMM = Part("compute", "gemm")
TP = Part("comm", "all_gather", "tp")
IDLE = Part("idle", "host")
MANGLED = "Cijk_Ailk_Bjlk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x256x64_MI16x16x1_SN"


def kernel(name: str, cls: str = "gemm", kind: str = "dense", group: str | None = None) -> KernelName:
    return KernelName(part_of(cls, kind, group), cls, kind, name)


def traced(
    *steps: Mapping[Part, float], kernels: Mapping[KernelName, tuple[float, float]] | None = None, repeat: int = 1
) -> Traced:
    found = {name: KernelTime(*time) for name, time in (kernels or {}).items()}
    return Traced(steps, [repeat] * len(steps), {}, found, {}, 1)


def side(found: Traced | None, *, is_simulated: bool = False) -> Side:
    summary = RankSummary("rank0.json", 0, True, (0, 1), [], [], 1, 1, 0, 0, False, Job(is_simulated=is_simulated))
    return Side("traces", [], found, [summary])


def test_profiled_step_unlike_the_measured_ones_is_said() -> None:
    """Of A a step of 0.1 s was profiled as one of 0.2 s; of B, 0.15 s, as one of 0.16 s."""
    rest = Contribution(UNPROFILED, -0.1, -0.01, unpaired([-0.1], [-0.01], "none"))
    (note,) = about_profiled(StepDifference(0.1, 0.15, 1.0, False, [rest]))
    assert note.startswith("A's profiled step takes 2.0 times a measured one")
    assert list(about_profiled(StepDifference(0.2, 0.2, 1.0, True, []))) == list(about_profiled(None)) == []


def test_step_difference_by_hand() -> None:
    """A: 1 s and 3 s of GEMM beside 1 s idle. B: 5 s of GEMM twice. GEMM adds 3 s, idle time takes 1 s away."""
    first = traced({GEMM: 1.0, IDLE: 1.0}, {GEMM: 3.0, IDLE: 1.0})
    found = step_difference(side(first), side(traced({GEMM: 5.0}, {GEMM: 5.0})))
    assert found is not None
    assert (found.first_s, found.other_s, found.difference_s, found.is_profiled) == (3, 5, 2, True)
    assert [(one.part, one.first_s, one.other_s, one.effect.value) for one in found.parts] == [
        (GEMM, 2, 5, 3), (IDLE, 1, 0, -1),
    ]  # fmt: skip
    # Variance 2 of two steps and 0 of the others: one degree of freedom, t(1) at 95 % is 6.314, standard error 1.
    assert found.parts[0].effect.high == pytest.approx(3 + 6.313752, rel=1e-5)
    assert found.parts[0].effect.is_tie and not found.parts[1].effect.is_tie


def test_parts_are_paired_over_repeats() -> None:
    """B takes 0.1 s more in each repeat, though repeats differ by a second: no spread is left."""
    repeats = [[traced({GEMM: at + more}, repeat=number) for number, at in enumerate((1.0, 2.0))] for more in (0, 0.1)]
    first, other = (of_repeats(found) for found in repeats)
    found = step_difference(side(first), side(other))
    assert found is not None
    effect = found.parts[0].effect
    assert (effect.basis, effect.num) == ("repeats", 2)
    assert [effect.value, effect.low, effect.high] == pytest.approx([0.1, 0.1, 0.1])


def test_parts_of_simulated_steps_have_no_interval() -> None:
    steps = traced({GEMM: 1.0}, {GEMM: 1.1}), traced({GEMM: 2.0}, {GEMM: 2.1})
    found = step_difference(*(side(one, is_simulated=True) for one in steps))
    assert found is not None and math.isnan(found.parts[0].effect.low)


def test_without_times_on_both_sides_there_is_no_step() -> None:
    assert step_difference(side(traced({GEMM: 1.0})), side(None)) is None


def test_kernels_are_matched_from_the_surest_to_the_least_sure() -> None:
    """By name; by shape; by what they do in one type; by what they do; and what is left stands alone."""
    first = {
        kernel("same"): (1, 1.0),
        kernel("nvjet_sm90_tst_64x128x32", kind="nvjet"): (2, 1.0),
        kernel("nvjet_tst_128x64_64x10_4x1_v_bz_TNN", kind="nvjet"): (2, 1.0),
        kernel("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nt"): (4, 1.0),
        kernel("flash_fwd_kernel", "attention", "forward"): (1, 1.0),
        kernel("ncclKernel_AllGather_RING_LL_Sum_float()", "comm", "all_gather", "tp"): (1, 1.0),
    }
    other = {
        kernel("same"): (1, 1.0),
        kernel("nvjet_qqtst_128x64_64x10_4x1_v_bz_TNN", kind="nvjet"): (2, 1.0),
        kernel("nvjet_sm90_tst_64x128x32", kind="nvjet"): (2, 1.0),
        kernel(MANGLED, kind="tensile"): (4, 1.0),
        kernel("ncclDevKernel_Generic", "comm", "all_gather", "tp"): (1, 1.0),
        kernel("layer_norm_kernel", "norm", "layer_norm"): (1, 1.0),
    }
    ones = {name.part: 1.0 for name in (*first, *other)}
    both = traced(ones, kernels=first), traced(ones, kernels=other)
    step = step_difference(side(both[0]), side(both[1]))
    assert step is not None
    by_match: dict[str, list[tuple[tuple[str, ...], tuple[str, ...]]]] = {}
    for one in kernel_differences(*both, step):
        by_match.setdefault(one.match, []).append(one.names)
    assert sorted(by_match["name"]) == [(("nvjet_sm90_tst_64x128x32",),) * 2, (("same",), ("same",))]
    assert (("ncclKernel_AllGather_RING_LL_Sum_float()",), ("ncclDevKernel_Generic",)) in by_match["kind"]
    assert (("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nt",), (MANGLED,)) in by_match["kind"]
    assert by_match["operation"] == [
        (("nvjet_tst_128x64_64x10_4x1_v_bz_TNN",), ("nvjet_qqtst_128x64_64x10_4x1_v_bz_TNN",))
    ]
    assert sorted(by_match["one side"]) == [((), ("layer_norm_kernel",)), (("flash_fwd_kernel",), ())]


def test_a_kernel_of_one_shape_is_matched_across_vendors() -> None:
    names = ("nvjet_sm80_tst_2048x7168x3584", "Cijk_Alik_Bljk_BBS_2048x7168x3584")
    first, other = (traced({GEMM: 1.0}, kernels={kernel(name): (1, 1.0)}) for name in names)
    step = step_difference(side(first), side(other))
    assert step is not None
    (found,) = kernel_differences(first, other, step)
    assert (found.match, found.title) == ("shape", "gemm 2048x7168x3584")


def test_kernels_share_the_exposed_time_of_their_part() -> None:
    """Two gathers of 3 s and 1 s, of 2 s exposed: 1.5 s and 0.5 s. Fully hidden in B, they take 2 s off the step."""
    names = {
        kernel("long", "comm", "all_gather", "tp"): (1, 3.0),
        kernel("short", "comm", "all_gather", "tp"): (2, 1.0),
    }
    first, other = traced({TP: 2.0, IDLE: 1.0}, kernels=names), traced({TP: 0.0, IDLE: 0.5}, kernels=names)
    step = step_difference(side(first), side(other))
    assert step is not None
    found = {one.title: one for one in kernel_differences(first, other, step)}
    assert found["long"].steps_s == (1.5, 0) and found["short"].steps_s == (0.5, 0)
    assert found["long"].sums_s == (3, 3) and found["short"].counts == (2, 2)
    assert found[""].match == "no kernel" and found[""].difference_s == -0.5


PARTS = st.sampled_from([GEMM, TP, IDLE, Part("compute", "norm"), Part("memory", "memset")])
NAMES = st.sampled_from(["a", "b", "nvjet_sm90_tst_8x8x8", "Cijk_Alik_Bljk_BBS_8x8x8", MANGLED, "x<float>", "x<half>"])
TIMES = st.integers(0, 10**12).map(lambda time_ns: time_ns / 1e9)
"""Traces have whole nanoseconds."""
KERNELS = st.dictionaries(
    st.builds(
        lambda name, at: kernel(name, *at),
        NAMES,
        st.sampled_from([("gemm", "dense"), ("comm", "all_gather", "tp"), ("norm", "rms_norm"), ("memory", "memset")]),
    ),
    st.tuples(st.integers(1, 50), TIMES),
)
STEPS = st.lists(st.dictionaries(PARTS, TIMES), min_size=1, max_size=3)


@given(STEPS, STEPS, KERNELS, KERNELS)
def test_contributions_of_parts_and_of_kernels_add_up_to_the_difference(
    first: list[dict[Part, float]],
    other: list[dict[Part, float]],
    first_kernels: dict[KernelName, tuple[float, float]],
    other_kernels: dict[KernelName, tuple[float, float]],
) -> None:
    one, two = traced(*first, kernels=first_kernels), traced(*other, kernels=other_kernels)
    step = step_difference(side(one), side(two))
    assert step is not None
    within = {"rel": 1e-9, "abs": 1e-9}
    assert sum(part.effect.value for part in step.parts) == pytest.approx(step.difference_s, **within)
    kernels = kernel_differences(one, two, step)
    assert sum(found.difference_s for found in kernels) == pytest.approx(step.difference_s, **within)
    for which, names in enumerate((first_kernels, other_kernels)):
        assert sorted(name for found in kernels for name in found.names[which]) == sorted(name.name for name in names)
