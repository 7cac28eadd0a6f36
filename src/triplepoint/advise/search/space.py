"""Configurations of a search: the product of the values of settings, without indivisible degrees."""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from triplepoint.config.catalogue import Catalogue
from triplepoint.config.cluster import ClusterConfig
from triplepoint.config.model import ModelConfig
from triplepoint.config.study import MOST_POINTS
from triplepoint.errors import Problems, UserError, nearest
from triplepoint.predictions import Configuration

_MICRO_BATCHES = (1, 2, 4, 8)
_MOST_CHUNKS = 5
"""Largest number of virtual stages of a rank."""
_LONG_TOKENS = 16_384
"""Sequence length from which context parallelism is searched. Unit: token."""
_MOST_CONTEXT = 8
_SIZES = ("num_gpus", "tp", "pp", "vp", "cp", "ep", "micro_batch_size")
_ALWAYS = ("model", "cluster", "global_batch_size")
"""Settings that are fields of the question."""
POWER_LIMIT = "power_limit_w"
"""Key of `values` for power limits of GPUs. It is a condition of the cluster, not a setting of a point."""

Row = dict[str, Any]
Values = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Question:
    """Question of a search.

    Attributes:
        model: Name of a file in `config/models/`.
        cluster: Name of a file in `config/clusters/`.
        global_batch_size: Sequences of a step.
        values: Values of settings to search over, instead of the default values.
        stack: Software stack and version. None: that of the cluster.
    """

    model: str
    cluster: str
    global_batch_size: int
    values: Values = field(default_factory=dict)
    stack: str | None = None

    @property
    def fixed(self) -> Row:
        """Settings of all configurations: model, cluster, batch, and settings with a single value."""
        shared = {"model": self.model, "cluster": self.cluster, "global_batch_size": self.global_batch_size}
        shared |= {name: values[0] for name, values in self.settings.items() if len(values) == 1}
        return shared | ({"stack": self.stack} if self.stack else {})

    @property
    def settings(self) -> Values:
        """Values of settings of a point, without power limits."""
        return {name: values for name, values in self.values.items() if name != POWER_LIMIT}

    @property
    def power_limits_w(self) -> Sequence[float]:
        """Power limits of GPUs to search over; empty: that of the cluster. Unit: W."""
        return self.values.get(POWER_LIMIT, ())


def groups_of(question: Question, catalogue: Catalogue) -> list[list[Row]]:
    """Return the settings of configurations with possible degrees, grouped by degrees; rules are not checked yet.

    Degrees are impossible if they do not divide the GPUs, layers, experts or batch.

    Args:
        question: The question.
        catalogue: The configuration.

    Raises:
        UserError: If the model, the cluster or a setting is unknown, no degrees are possible, or there are too many
            configurations.
    """
    problems = Problems("search")
    for error in _wrong_values(question.settings):
        problems.add(error)
    cluster = problems.call(catalogue.cluster, question.cluster, "search")
    model = problems.call(catalogue.model, question.model, "search")
    problems.refuse()
    assert cluster is not None and model is not None
    axes = _axes(question, model, cluster.num_gpus, cluster.gpus_per_node)
    total = math.prod(len(values) for values in axes.values())
    if total > 50 * MOST_POINTS:
        raise UserError(f"search: {total} combinations, at most {50 * MOST_POINTS} are gone through; give fewer values")
    sizes = [dict(zip(_SIZES, own, strict=True)) for own in itertools.product(*(axes[name] for name in _SIZES))]
    refusals = [_refusal(own, axes, question, model, cluster.num_gpus) for own in sizes]
    groups = [list(_rows(own, axes, question)) for own, why in zip(sizes, refusals, strict=True) if not why]
    number = sum(map(len, groups))
    if not number:
        reasons = "; ".join(f"{count}: {why}" for why, count in Counter(refusals).most_common())
        raise UserError(f"search: no degrees are possible, of {len(sizes)} combinations {reasons}")
    if number > MOST_POINTS:
        raise UserError(f"search: {number} configurations, at most {MOST_POINTS}; give fewer values with --set")
    return groups


def with_power_limit(cluster: ClusterConfig, limit_w: float | None) -> ClusterConfig:
    """Return a cluster with another power limit of its GPUs, under a name that says so; None: the cluster itself.

    Args:
        cluster: The cluster.
        limit_w: Power limit of every GPU. Unit: W.
    """
    if limit_w is None:
        return cluster
    changes = {
        "name": f"{cluster.name}-{limit_w:g}w".replace(".", "p"),
        "like": cluster.like or cluster.name,
        "conditions": cluster.conditions.model_copy(update={"power_limit_w": limit_w}),
    }
    return cluster.model_copy(update=changes)


def _wrong_values(values: Values) -> Iterator[UserError]:
    known = [name for name in Configuration.model_fields if name not in (*_ALWAYS, "id", "stack", "dp", "repeats")]
    for name in values:
        if name not in known:
            yield UserError(f"search: --set {name}: is not a setting to search over{nearest(name, known)}")
    for name in _SIZES:
        for value in values.get(name, ()):
            if type(value) is not int or value < 1:
                yield UserError(
                    f"search: --set {name}: found {value!r}, expected whole numbers from 1, such as {name}=1,2"
                )


def _axes(question: Question, model: ModelConfig, num_gpus: int, gpus_per_node: int) -> dict[str, Sequence[Any]]:
    """Return the values of each setting that varies."""
    tokens = max((*question.values.get("sequence_length", ()), model.sequence_length))
    has_experts = model.moe is not None
    usual: dict[str, Sequence[Any]] = {
        "num_gpus": (num_gpus,),
        "tp": _powers(gpus_per_node),
        "pp": [pp for pp in range(1, model.num_layers + 1) if model.num_layers % pp == 0],
        "vp": range(1, _MOST_CHUNKS + 1),
        "cp": _powers(_MOST_CONTEXT) if tokens >= _LONG_TOKENS else (1,),
        "ep": _powers(model.moe.num_experts) if model.moe else (1,),
        "micro_batch_size": _MICRO_BATCHES,
        "recompute": ("none", "selective", "full"),
        "data_parallel_sharding": ("optim", "optim_grads_params"),
        "overlap": ([], ["grad", "param", "tp", *(["ep"] if has_experts else [])]),
    }
    return usual | dict(question.settings)


def _powers(most: int) -> list[int]:
    return [2**power for power in range(most.bit_length()) if 2**power <= most]


def _refusal(own: Row, axes: Values, question: Question, model: ModelConfig, num_gpus: int) -> str:
    """Return why degrees are impossible, with the setting to change; empty if they are possible."""
    ranks = own["tp"] * own["pp"] * own["cp"]
    gpus, micro, batch = own["num_gpus"], own["micro_batch_size"], question.global_batch_size
    if gpus > num_gpus:
        return f"num_gpus is more than the {num_gpus} of {question.cluster}"
    if gpus % ranks:
        return f"tp*pp*cp does not divide num_gpus, {gpus}"
    if batch % (micro * gpus // ranks):
        return f"micro_batch_size*dp does not divide --batch {batch}"
    if own["vp"] > 1 and own["pp"] == 1:
        return "vp needs pp above 1"
    # Where nothing else says how layers are split.
    if not {"pipeline_layers", "pipeline_ends"} & axes.keys() and model.num_layers % (own["pp"] * own["vp"]):
        return f"pp*vp does not divide the {model.num_layers} layers of {model.name}"
    if model.moe is not None and model.moe.num_experts % own["ep"]:
        return f"ep does not divide the {model.moe.num_experts} experts of {model.name}"
    return ""


def _rows(own: Row, axes: Values, question: Question) -> Iterator[Row]:
    """Yield the settings of all configurations with the given degrees."""
    rest = {name: values for name, values in axes.items() if name not in _SIZES}
    for others in itertools.product(*rest.values()):
        row = question.fixed | own | dict(zip(rest, others, strict=True))
        row.setdefault("sequence_parallel", own["tp"] > 1)
        yield row
