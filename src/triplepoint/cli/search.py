"""`triplepoint search MODEL CLUSTER --batch N`."""

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triplepoint.cli.answer import Answer
from triplepoint.cli.arguments import (
    add_config,
    add_prices,
    make_parser,
    number,
    out_figure,
    out_study,
    plan_command,
    read_prices,
    say,
    whole_number,
)
from triplepoint.cli.progress import Progress
from triplepoint.errors import Problems, UserError

if TYPE_CHECKING:
    from triplepoint.advise.search.search import Found

_MOST_BATCH = 10**9
_OBJECTIVES = ("time", "energy", "power", "temperature", "cost")

_ABOUT = """\
Every legal configuration of the model on the cluster is predicted: values of tp, pp, vp, cp, ep, micro_batch_size,
recompute, data_parallel_sharding and overlap. --set KEY=VALUE,VALUE gives your own values of these or of any other
setting (docs/config.md). Configurations that do not fit in memory are left out. The method is in docs/search.md.

columns:
  fits %          probability that the configuration fits in memory
  mbs             micro-batch size
  recompute       recomputation of activations
  overlap         on: communication overlaps computation wherever the layout allows it
  step s          step time
  slower by %     step time compared with the fastest configuration, and the 90 % interval of that difference
  GPUs J/token    energy of all GPUs per trained token
  node kW         highest power of any node at the plug, mean over 50 ms
  GPU degC        temperature of the hottest GPU
  limit W         power limit of every GPU; - is that of the cluster. Only where limits are varied
  job kW          highest power of all nodes together, mean over 50 ms; only with --max-power
  rack kW         the same of the highest rack; only with --max-rack-power
  per M tokens    cost of a million tokens, headed by the currency; only with prices
marks:
  *               one of the few to measure; --study writes them
  >               no other configuration is as good in time, energy, node kW and GPU degC

Limits apply to predicted values. With --max-power, the first row has the most tokens per second within that budget.
If a configuration draws more than a budget, lower power limits of its GPUs are tried, and the highest that keeps to it
is listed. --set power_limit_w=350,500 gives your own. With --study, a cluster file for each is written too.
The study runs on the simulator; with --set engine=megatron it trains, by that engine's rules.
"""
_EXAMPLES = (
    "triplepoint search llama3-70b h100x512 --batch 1024",
    "triplepoint search mixtral-8x22b h200x32 --batch 128 --max-power 36 --study config/studies/candidates.yaml",
    "triplepoint search llama3-8b h200x32 --batch 64 --set num_gpus=8,16,32 --set precision=bf16,fp8 --for energy",
    "triplepoint search llama3-70b h200x32 --batch 128 --for cost --price-kwh 0.15 --price-gpu-hour 2.5",
)


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    parser = make_parser(
        "search",
        "Find the configuration to train with, and the few configurations that are worth measuring.",
        _EXAMPLES,
        _ABOUT,
        answer={
            "answer": "one sentence",
            "rows": "configurations that keep to the limits, best first",
            "measure": "runs of the few to measure, gpu_hours, probability that the best is among them, gain_fraction",
            "counts": "configurations by what became of them",
            "nearest": "run that is nearest where none keeps to the limits, and the factor by which it breaks each",
            "study": "file that was written, or null",
            "figure": "file that was written, or null",
        },
    )
    parser.add_argument("model", metavar="MODEL", help="a file in config/models")
    parser.add_argument("cluster", metavar="CLUSTER", help="a file in config/clusters")
    parser.add_argument(
        "--batch", type=whole_number(_MOST_BATCH), required=True, metavar="N", help="global batch, sequences per step"
    )
    parser.add_argument(
        "--for", dest="objective", choices=_OBJECTIVES, default="time", help="what to minimise (default: time)"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUES",
        help="values of a setting, such as tp=4,8, or of power_limit_w; repeatable (default: usual values)",
    )
    parser.add_argument("--stack", metavar="NAME", help="software stack and version (default: that of the cluster)")
    _add_limits(parser)
    add_prices(parser)
    parser.add_argument(
        "--within", type=number(0, 1), default=0.25, metavar="SHARE",
        help="predict power and heat of configurations up to this share slower than the fastest (default: 0.25)",
    )  # fmt: skip
    parser.add_argument(
        "--measure", type=whole_number(50), default=6, metavar="N", help="configurations to measure, at most"
    )
    parser.add_argument("--study", type=out_study, metavar="FILE", help="write them as a study, .yaml (default: none)")
    parser.add_argument("--figure", type=out_figure, metavar="FILE", help=".pdf, .png or .svg to draw (default: none)")
    add_config(parser)
    return parser


def _add_limits(parser: argparse.ArgumentParser) -> None:
    limits = {
        "step-time": ("SECONDS", "limit of the step time"),
        "energy": ("J", "limit of the energy of all GPUs per token"),
        "node-power": ("KW", "limit of the peak power of a node at the plug"),
        "rack-power": ("KW", "limit of the peak power of a rack; the cluster needs nodes_per_rack"),
        "power": ("KW", "limit of the peak power of all nodes together: the budget of a hall"),
        "temp": ("DEGC", "limit of the hottest GPU"),
        "memory": ("GIB", "limit of the memory of the fullest GPU"),
    }
    limit = number(0, 1e15, is_least_allowed=False)
    for name, (unit, what) in limits.items():
        parser.add_argument(
            f"--max-{name}", type=limit, default=math.inf, metavar=unit, help=f"{what} (default: no limit)"
        )
    parser.add_argument(
        "--fits", type=number(0, 1), default=0.5, metavar="SHARE", help="lowest probability of fitting in memory"
    )


def run(arguments: argparse.Namespace) -> Answer:
    """Search; write the study and the figure on request."""
    from triplepoint.advise.search.limits import Limits
    from triplepoint.advise.search.search import search
    from triplepoint.advise.search.space import Question

    problems = Problems("search")
    pairs = [pair for text in arguments.set if (pair := problems.call(_values, text))]
    values = dict(pairs)
    if len(values) < len(pairs):
        name = next(name for name in values if [key for key, _ in pairs].count(name) > 1)
        problems.add(UserError(f"search: --set {name} is given twice; give all its values in one, comma-separated"))
    problems.refuse()
    limits = Limits(
        step_time_s=arguments.max_step_time,
        energy_per_token_j=arguments.max_energy,
        node_power_kw=arguments.max_node_power,
        rack_power_kw=arguments.max_rack_power,
        power_kw=arguments.max_power,
        temp_c=arguments.max_temp,
        memory_gib=arguments.max_memory,
        fits_probability=arguments.fits,
    )
    question = Question(arguments.model, arguments.cluster, arguments.batch, values, arguments.stack)
    with Progress("listing configurations") as say:
        result = search(
            question, arguments.config, arguments.objective, limits, arguments.within, arguments.measure,
            read_prices(arguments), lambda line: say(f"search: {line}"),
        )  # fmt: skip
    return _answer(result, arguments.config, arguments.study, arguments.figure)


def _values(text: str) -> tuple[str, list[Any]]:
    """Return a setting and its values from `tp=2,4` or `overlap=[],[grad,param]`."""
    from triplepoint.config.yaml_file import load

    name, equals, values = text.partition("=")
    if not equals or not values.strip():
        raise UserError(f"search: --set {text[:60]}: expected KEY=VALUE,VALUE, such as tp=2,4")
    return name, load(f"[{values}]", f"search: --set {name}", "values")


def _answer(result: "Found", config: Path, study: Path | None, figure: Path | None) -> Answer:
    """Return the answer; write the study and the figure if their paths are given."""
    from triplepoint.advise.search import text as answer
    from triplepoint.files import write_text

    content: dict[str, Any] = {
        "answer": answer.headline(result),
        "rows": answer.rows(result),
        "measure": answer.measured_content(result),
        "counts": result.counts,
        "nearest": result.nearest and {"run": result.nearest[0].run, "excess": result.nearest[1]},
        "study": study if result.chosen else None,
        "figure": figure if result.chosen else None,
    }
    text = answer.render(result)
    if result.chosen and figure is not None:
        from triplepoint.advise.search.figure import draw
        from triplepoint.figures.write import save

        save(draw(result), figure)
        say(f"search: figure in {figure}")
    if result.chosen and study is not None:
        write_text(study, answer.study_of(result, study.stem))
        for name, content_of_cluster in answer.clusters_of(result).items():
            write_text(config / "clusters" / f"{name}.yaml", content_of_cluster)
            say(f"search: cluster with this power limit in {config / 'clusters' / name}.yaml")
        names = [one.candidate.point.cluster.name for one in result.to_measure]
        text += f"\nNext: {plan_command(study, config, names)}"
    elif len(result.to_measure) > 1:
        text += "\nNext: the same command with --study FILE.yaml writes the marked ones as a study to run."
    return Answer(content, text, status=0 if result.chosen else 1)
