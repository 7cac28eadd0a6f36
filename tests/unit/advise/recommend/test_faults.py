"""Faults other than one bad contact: `triplepoint recommend` names them, or says that it cannot, before it advises.

The cluster file that it reads has none of the faults.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import matplotlib.image
import numpy as np
import pytest

from tests.benchmarks.recommend import CONFIG, draw_cluster, planned, simulate_on, true_step_s
from triplepoint.advise.recommend.advice import Advice, advise, advise_cluster
from triplepoint.advise.recommend.content import content
from triplepoint.advise.recommend.degraded import Degraded
from triplepoint.advise.recommend.figure import draw
from triplepoint.advise.recommend.hardware import Outlier, find_outliers
from triplepoint.advise.recommend.passport import Learned
from triplepoint.advise.recommend.placement import Placement
from triplepoint.advise.recommend.placement_gain import Gain, Proposal
from triplepoint.advise.recommend.step_check import unexplained_step
from triplepoint.advise.recommend.text import headline, render, words
from triplepoint.cli import main
from triplepoint.config.cluster import ClusterConfig
from triplepoint.config.plan import PlannedRun
from triplepoint.errors import UserError
from triplepoint.metrics import Interval
from triplepoint.why.answer import Answer
from triplepoint.why.explain import Finding
from triplepoint.why.sensed import Sensed

pytestmark = pytest.mark.timeout(900)
"""A fit or a search of a minute takes many beside other tests."""


def run_with(pp: int = 2, **changed: Any) -> PlannedRun:
    """Llama 3 70B, TP8 and stages of a node: no other stage does the same work."""
    found = planned("llama3-70b_h200x32_tp8-pp2-dp2-sp-zero1_mbs1_act_sim", repeat=5)
    layout = found.point.layout.model_copy(update={"pp": pp, "dp": 1, "data_parallel_sharding": "no_shard"})
    update = {"layout": layout, "num_gpus": 8 * pp, "global_batch_size": 32} | changed
    point = found.point.model_copy(update=update)
    return found.model_copy(update={"run": "faulty", "point": point, "digest": point.digest()})


def truth_with(slow_gpus: dict[str, float] | None = None, num_nodes: int = 2, **conditions: Any) -> ClusterConfig:
    cluster = draw_cluster(3, num_nodes)
    faults = cluster.conditions.model_copy(update={"bad_contact": {}} | conditions)
    return cluster.model_copy(update={"conditions": faults, "slow_gpus": slow_gpus or {}})


def answer_of(folder: Path, capsys: pytest.CaptureFixture[str], config: Path = CONFIG) -> dict[str, Any]:
    words = ["recommend", folder.name, "--results", str(folder.parents[1]), "--config", str(config), "--json"]
    assert main(words) == 0
    answer = json.loads(capsys.readouterr().out)
    assert isinstance(answer, dict)
    return answer


@pytest.fixture(scope="module")
def braked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """Return the folder of a run with a node under the power brake, and its step time without the brake in s."""
    folder = simulate_on(truth_with(braked_nodes=[1]), run_with(), tmp_path_factory.mktemp("braked"))
    return folder, true_step_s(truth_with(), run_with(), Placement((0, 1), (40, 40)))


@pytest.mark.parametrize("is_declared", [False, True])
def test_a_node_under_the_power_brake_is_degraded_and_no_layers_are_fitted_to_it(
    is_declared: bool, braked: tuple[Path, float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulated, sound_s = braked
    # A copy, because an answer leaves the passport of its run with the results.
    shutil.copytree(simulated.parents[2], tmp_path, dirs_exist_ok=True)
    folder = tmp_path / simulated.relative_to(simulated.parents[2])
    answer = answer_of(folder, capsys, tmp_path / "truth" if is_declared else CONFIG)
    (outlier,) = answer["outliers"]
    assert (outlier["name"], outlier["kind"]) == ("node1", "degraded")
    assert "power brake for 100 % of the time, 990 MHz against" in outlier["evidence"]
    assert "power supplies" in outlier["action"] and "BMC" in outlier["action"]
    assert outlier["cost_s"] == pytest.approx(answer["step_time_s"] - sound_s, rel=0.03)
    assert answer["predicted_step_time_s"] == pytest.approx(answer["step_time_s"], rel=0.01)
    assert not answer["is_accepted"] and answer["pipeline_layers"] is None and answer["limits"] == []
    assert answer["answer"].startswith("Repair node1 first: its hardware holds down its clocks, it costs ")
    assert answer["reasons"] == [
        "Placement and power limits are not judged while hardware is degraded. Repair node1 first, then ask again."
    ]
    assert main(["why", folder.name, "--results", str(folder.parents[1]), "--config", str(CONFIG), "--json"]) == 0
    (cause,) = json.loads(capsys.readouterr().out)["causes"]
    assert (cause["gpu"], cause["cause"]) == ("all 8 GPUs of node 1", "degraded"), "both commands agree"


def test_a_moderate_contact_of_a_front_gpu_is_a_note_and_the_step_is_as_predicted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    contacts = {"node0.gpu6": 4.5, "node1.gpu2": 1.6}
    folder = simulate_on(truth_with(bad_contact=contacts), run_with(micro_batch_size=2), tmp_path)
    answer = answer_of(folder, capsys)
    assert answer["predicted_step_time_s"] == pytest.approx(answer["step_time_s"], rel=0.005)
    assert [(one["name"], one["kind"], one["is_minor"]) for one in answer["outliers"]] == [
        ("node0.gpu6", "contact", False), ("node1.gpu2", "contact", True),
    ]  # fmt: skip
    contact = {f"node{slot['node']}.gpu{slot['device']}": slot["contact"] for slot in answer["passport"]["slots"]}
    assert contact["node1.gpu2"]["value"] == pytest.approx(1.6, rel=0.1)
    listed = {one["name"] for one in answer["outliers"]}
    assert all((name in listed) == (one["value"] >= 1.25) for name, one in contact.items())


def test_a_slow_gpu_is_named_by_the_traces_of_its_tensor_parallel_group(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = simulate_on(truth_with({"node1.gpu3": 0.9}), run_with(trace_ranks=tuple(range(16))), tmp_path)
    answer = answer_of(folder, capsys)
    (outlier,) = answer["outliers"]
    assert (outlier["name"], outlier["kind"]) == ("node1.gpu3", "slow")
    assert "90 % of the speed of its peers" in outlier["evidence"]
    assert answer["predicted_step_time_s"] == pytest.approx(answer["step_time_s"], rel=0.01)
    assert answer["unexplained"] is None


def test_what_nothing_shows_withholds_advice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the trace of rank 0 alone, a GPU that is slow at the usual clock shows nowhere but in the step."""
    folder = simulate_on(truth_with({"node1.gpu3": 0.9}), run_with(), tmp_path)
    answer = answer_of(folder, capsys)
    assert answer["outliers"] == [] and answer["considered"] == [] and answer["limits"] == []
    steps = f"Predicted step {answer['predicted_step_time_s']:.2f} s, simulated {answer['step_time_s']:.2f} s"
    assert answer["unexplained"] == (
        f"{steps}: something that sensors do not show slows it; run 'triplepoint why {folder.name}'."
    )
    assert answer["answer"] == "No change is advised: a step is not as predicted."
    assert answer["reasons"] == ["Placement and power limits are not judged from a prediction that does not hold."]
    figure = tmp_path / "advice.png"
    words = ["recommend", folder.name, "--results", str(folder.parents[1]), "--config", str(CONFIG)]
    assert main([*words, "--figure", str(figure)]) == 0
    assert f"\n{steps}: something" in capsys.readouterr().out, "one line below the answer"
    assert matplotlib.image.imread(figure).shape[1] == pytest.approx(7.0 * 200, rel=0.01)


def test_weak_air_of_a_node_is_one_note_that_blocks_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    air = {f"node1.gpu{gpu}": 0.65 for gpu in range(8)}
    folder = simulate_on(truth_with(num_nodes=4, blocked_airflow=air), run_with(pp=4), tmp_path)
    answer = answer_of(folder, capsys)
    (outlier,) = answer["outliers"]
    assert (outlier["name"], outlier["kind"], outlier["is_minor"]) == ("node1", "airflow", True)
    assert not answer["answer"].startswith("Repair")
    assert answer["limits"], "limits are searched"
    text = render(advise(folder, CONFIG), [], 15)
    assert "Hardware: nothing that costs time stands out.\n  Note: node1, airflow: the median GPU has 1." in text


def test_little_air_of_a_node_is_one_fault_of_the_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rear row is hotter by far, and all of it alike."""
    air = {f"node1.gpu{gpu}": 0.4 for gpu in range(8)}
    folder = simulate_on(truth_with(blocked_airflow=air), run_with(), tmp_path)
    answer = answer_of(folder, capsys)
    (outlier,) = answer["outliers"]
    assert (outlier["name"], outlier["kind"], outlier["is_minor"]) == ("node1", "airflow", False)
    assert answer["answer"].startswith("Repair node1 first: it gets too little air, it costs ")
    assert outlier["cost_lo_s"] < outlier["cost_s"] < outlier["cost_hi_s"]


def test_one_node_without_a_described_airflow_says_that_it_cannot_tell_contact_from_row(tmp_path: Path) -> None:
    """With 1.5 times the resistance, gpu2 of the front row is as hot as the rear row, and no other node is there."""
    run = run_with(num_gpus=8, trace_ranks=(0,))
    layout = run.point.layout.model_copy(update={"pp": 1})
    model = planned("llama3-30b_h200x32_tp4-pp4-dp2", repeat=5).point.model
    point = run.point.model_copy(update={"layout": layout, "model": model})
    run = run.model_copy(update={"point": point, "digest": point.digest()})
    for airflow in ("hgx-8", None):
        truth = truth_with(bad_contact={"node0.gpu2": 1.5}, airflow=airflow)
        where = tmp_path / str(airflow)
        folder = simulate_on(truth, run, where)
        sound = truth.model_copy(update={"conditions": truth.conditions.without_faults})
        sound = sound.model_copy(update={"conditions": sound.conditions.model_copy(update={"contact": {}})})
        (where / "truth" / "clusters" / "h200x32.yaml").write_text(sound.model_dump_json(exclude_defaults=True))
        advice = advise(folder, where / "truth")
        if airflow is None:
            (note,) = advice.notes
            assert "Whether gpu2 has bad contact or stands in the rear is therefore not known" in note
            assert "a front GPU with bad contact looks like a rear one" in " ".join(render(advice, [], 15).split())
        else:
            assert advice.notes == () and [one.name for one in advice.outliers] == ["node0.gpu2"]


def test_dies_that_share_a_package_are_refused_with_what_works(tmp_path: Path) -> None:
    folder, run = simulate_on(truth_with(), run_with(), tmp_path), run_with()
    point = run.point.model_copy(update={"cluster": run.point.cluster.model_copy(update={"name": "mi250x32"})})
    other = run.model_copy(update={"point": point, "digest": point.digest()})
    (folder / "point.json").write_text(other.model_dump_json())
    with pytest.raises(UserError, match=r"dies of mi250 share a package.*'triplepoint recommend mi250x32 --set"):
        advise(folder, CONFIG)


@pytest.fixture(scope="module")
def described() -> Advice:
    """Advice for a job on a sound cluster as its file describes it."""
    settings = {"model": "llama3-8b", "global_batch_size": 16, "num_gpus": 32, "tp": 8, "pp": 4}
    return advise_cluster("h200x32", settings, CONFIG, None)


@pytest.mark.parametrize(
    ("placement", "says"),
    [
        (Placement((0, 1, 2, 3), (8, 8, 8, 8)), "the present layers"),
        (Placement((1, 0, 2, 3), (8, 8, 8, 8)), "hosts in another order"),
        (Placement((0, 1, 2, 3), (9, 8, 8, 7)), "layers 9,8,8,7"),
        (Placement((1, 0, 2, 3), (9, 8, 8, 7)), "layers 9,8,8,7 with hosts in another order"),
        (Placement((0, 1, 2, 3), (8, 8, 8, 8), 2), "micro-batch 2"),
        (Placement((1, 0, 2, 3), (9, 8, 8, 7), 2), "micro-batch 2 with layers 9,8,8,7 and hosts in another order"),
    ],
)
def test_a_change_is_named_by_what_it_changes(described: Advice, placement: Placement, says: str) -> None:
    assert words(described, placement) == says


def test_a_change_of_nearly_nothing_is_no_advice(described: Advice) -> None:
    """Nothing is found from 0.1 % on; a split that the user asks about and gains less is said to."""
    assert described.proposed is None or described.gain is not None and described.gain.share >= 1e-3
    judged = Proposal(Placement((0, 1, 2, 3), (9, 8, 8, 7)), described.before, Gain(0.0002, -0.003, 0.004))
    asked = replace(described, considered=[judged], is_split_asked=True)
    assert "layers 9,8,8,7 would change a step by less than 0.1 %" in headline(asked)
    assert "0.0 %" not in render(asked, [], 15)


def test_the_present_layers_are_no_change(described: Advice) -> None:
    judged = Proposal(described.present, described.before, Gain(0.0, -0.003, 0.003))
    asked = replace(described, considered=[judged], is_split_asked=True)
    assert headline(asked) == "Leave the placement as it is: these are the present layers."


def test_a_part_of_a_step_below_a_second_has_a_unit_that_suits_it(described: Advice) -> None:
    made = Outlier("node1.gpu2", "node1", "contact", "hot", "reseat it", 0.004, seats=frozenset([(1, 2)]))
    assert "It costs 4 ms of a step (" in render(replace(described, outliers=[made]), [], 15)


def test_hosts_and_intervals_of_outliers(described: Advice) -> None:
    """A host is named where it tells more than the name; the interval of a cost is that of its JSON."""
    made = Outlier(
        "node1.gpu2", "rack3-b", "contact", "hot", "reseat it", 1.0, Interval(0.5, 1.6), seats=frozenset([(1, 2)])
    )
    advice = replace(described, outliers=[made, replace(made, name="node1", host="node1", is_minor=True)])
    text = render(advice, [], 15)
    assert "Repair node1.gpu2 (rack3-b) first" in text and "Note: node1, contact: hot." in text
    step_s = described.before.step_time_s
    ends = f"{100 / step_s:.1f} % [{50 / step_s:.1f}, {160 / step_s:.1f}]"
    assert f"It costs 1.00 s of a step ({ends})" in text
    first = content(advice, [], 15)["outliers"][0]
    assert (first["cost_lo_s"], first["cost_s"], first["cost_hi_s"]) == (0.5, 1.0, 1.6)
    assert str(draw(advice).get_label()).startswith("node1.gpu2 (rack3-b): its heat sink has bad contact or too")


SENSED = Sensed(0, "a", "gpu0", 0, clock_mhz=1900.0, power_w=600.0, limit_w=700.0, throttled={"power_brake_share": 0.0})


def explained_by(findings: list[Finding], **odd: object) -> Answer:
    """Return what `why` says of a job on four hosts of eight GPUs, of which rank 11 is as said."""
    gpus = [
        replace(SENSED, rank=rank, host="abcd"[rank // 8], device=f"gpu{rank % 8}", node=rank // 8)
        for rank in range(32)
    ]
    gpus[11] = replace(gpus[11], **odd)  # type: ignore[arg-type]
    return cast(Answer, SimpleNamespace(findings=findings, sensed=tuple(gpus)))


HOSTS = {node: f"host{node}" for node in range(4)}


def test_a_slow_adapter_and_a_lower_limit_that_why_names_are_in_the_list(described: Advice) -> None:
    network = Finding(11, "gpu3", "network", 0.5, "its transfers take 30.0 % longer", excess=0.3)
    limit = Finding(11, "gpu3", "power limit", 0.4, "its power limit is 500 W against 700")
    for finding, kind, odd in ((network, "network", {}), (limit, "limit", {"limit_w": 500.0})):
        (found,) = find_outliers(described.site, None, described.before, HOSTS, explained_by([finding], **odd))
        assert (found.name, found.host, found.kind) == ("node1.gpu3", "host1", kind)
        assert (found.cost_s, found.evidence) == (finding.lost_s, finding.evidence)
    # A part that leaks more has the limit of the others, and nothing is to be repaired.
    assert find_outliers(described.site, None, described.before, HOSTS, explained_by([limit])) == []


def test_a_single_gpu_that_the_hardware_holds_down_is_degraded(described: Advice) -> None:
    """Its computation time is not known: its clock gives the most that it can cost."""
    explained = explained_by([], clock_mhz=950.0, throttled={"hw_slowdown_share": 0.9})
    degraded = Degraded.of(explained)
    site = degraded.on(described.site)
    assert site.cluster.slow_gpus == {"node1.gpu3": pytest.approx(0.5)}
    (found,) = find_outliers(site, None, site.step(site.present), HOSTS, explained, degraded)
    assert (found.name, found.kind, found.is_bound, found.is_minor) == ("node1.gpu3", "degraded", True, False)
    assert found.evidence == "hardware slowdown for 90 % of the time, 950 MHz against 1900 MHz of GPUs without it"
    assert found.cost_s is not None and found.cost_s > 0.02 * described.before.step_time_s


def test_heat_that_a_bad_contact_explains_is_no_other_fault(described: Advice) -> None:
    """Its contact slows it in the simulation already; without one, its clock does."""
    explained = explained_by([], clock_mhz=950.0, throttled={"hw_thermal_share": 0.9})
    assert Degraded.of(explained, [(1, 3)]).held == {}
    assert Degraded.of(explained, [(1, 2)]).on(described.site).cluster.slow_gpus == {"node1.gpu3": pytest.approx(0.5)}
    braked = explained_by([], clock_mhz=950.0, throttled={"power_brake_share": 0.9})
    assert list(Degraded.of(braked, [(1, 3)]).held) == [(1, 3)]


def test_a_node_that_is_too_hot_is_slow_and_not_braked(described: Advice) -> None:
    explained = explained_by([])
    hot = {"clock_mhz": 950.0, "throttled": {"hw_thermal_share": 0.9}}
    sensed = [replace(gpu, **hot) if gpu.node == 1 else gpu for gpu in explained.sensed]
    degraded = Degraded.of(cast(Answer, SimpleNamespace(findings=[], sensed=sensed)))
    assert (degraded.nodes, degraded.braked) == ({1}, set())
    cluster = degraded.on(described.site).cluster
    assert cluster.conditions.braked_nodes == [] and set(cluster.slow_gpus) == {f"node1.gpu{gpu}" for gpu in range(8)}


def test_faults_that_hide_each_other_share_their_cost(described: Advice) -> None:
    """Two equally slow GPUs of a tensor parallel group: the repair of one alone saves nothing."""
    cluster = described.site.cluster.model_copy(update={"slow_gpus": {"node1.gpu3": 0.4, "node1.gpu4": 0.4}})
    site = replace(described.site, cluster=cluster)
    before = site.step(site.present)
    both_s = before.step_time_s - described.before.step_time_s
    costs_s = [one.cost_s for one in find_outliers(site, None, before, HOSTS)]
    assert both_s > 0.02 * before.step_time_s
    assert costs_s == [pytest.approx(both_s / 2, rel=0.05)] * 2


@pytest.mark.parametrize(
    ("is_simulated", "longer", "says"),
    [
        (True, 1.01, ""),
        (True, 1.03, "simulated {:.2f} s: something that sensors do not show slows it; run 'triplepoint why run'."),
        (True, 0.97, "simulated {:.2f} s: the prediction does not hold for this run."),
        (False, 1.05, ""),
        (False, 2.0, "measured {:.2f} s: something that sensors do not show slows it; run 'triplepoint why run'."),
    ],
)
def test_a_step_is_unexplained_beyond_the_error_of_its_model(
    described: Advice, is_simulated: bool, longer: float, says: str
) -> None:
    """The model of a simulated run is that of the prediction; of a measured one its 90 % interval counts."""
    step_s = longer * described.before.step_time_s
    passport = SimpleNamespace(passport=SimpleNamespace(is_simulated=is_simulated, run="run"))
    steps = np.array([step_s - 0.01, step_s, step_s + 0.01])
    found = unexplained_step(described.site, cast(Learned, passport), described.before, steps, None)
    expected = f"Predicted step {described.before.step_time_s:.2f} s, {says.format(step_s)}" if says else ""
    assert found == expected
    low_s, high_s = described.site.interval_of(described.before.step_time_s)
    assert low_s < described.before.step_time_s < high_s < 2.0 * described.before.step_time_s
    if longer == 2.0:
        network = Finding(11, "gpu3 of b (rank 11)", "network", 0.5, "", excess=0.3)
        named = unexplained_step(
            described.site, cast(Learned, passport), described.before, steps, explained_by([network])
        )
        assert named.endswith("lacks what 'triplepoint why' names, network of gpu3 of b (rank 11).")
