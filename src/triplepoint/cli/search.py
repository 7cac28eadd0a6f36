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
    out_file,
    read_prices,
    whole_number,
)
from triplepoint.cli.progress import Progress
from triplepoint.errors import Problems, UserError

if TYPE_CHECKING:
    from triplepoint.advise.search.search import Found

_MOST_BATCH = 10**9
_OBJECTIVES = ("time", "energy", "power", "temperature", "cost")

_ABOUT = """\
All legal configurations of the model on the cluster are looked at: tp, pp, vp, cp, ep, micro_batch_size, recompute,
data_parallel_sharding and overlap, and any other setting (docs/config.md) with --set KEY=VALUE,VALUE. Those that do not
fit in memory are left out, the others predicted as `triplepoint predict` does; see docs/search.md.

columns:
  fits          probability that it fits in memory
  slower %      step time over the fastest one's, with the 90 % interval of the difference: what is not known of both
                alike cancels
  GPU J/token   energy of all GPUs per trained token, and half its 90 % interval
  peak node kW  highest power of a node at the plug over a control period of 50 ms
  max degC      hottest GPU, and half its 90 % interval
  per Mtoken    cost of a million tokens; only with prices
  GPU h         GPU hours of one launch that measures it
  front         no other one is as good in time, energy, power of a node and temperature, and better in one
  tied          as fast as the fastest with a chance of 10 % or more
  measure       one of the few that --study writes

The study has the engine `simulated`; with --set engine=megatron all is by that engine's rules and stack, and the study
trains. A limit is kept by the predicted value. With --max-power, the first row has the most tokens per second under it.
"""
_EXAMPLES = (
    "triplepoint search llama3-70b h100x512 --batch 1024",
    "triplepoint search mixtral-8x22b h200x32 --batch 128 --max-power 36 --study config/studies/candidates.yaml",
    "triplepoint search llama3-8b h200x32 --batch 64 --set num_gpus=8,16,32 --set precision=bf16,fp8 --for energy",
    "triplepoint search llama3-70b h200x32 --batch 128 --for cost --price-kwh 0.15 --price-gpu-hour 2.5",
)


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    made = make_parser(
        "search",
        "Find the configuration to train with, and the few that are worth measuring.",
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
    made.add_argument("model", metavar="MODEL", help="a file in config/models")
    made.add_argument("cluster", metavar="CLUSTER", help="a file in config/clusters")
    made.add_argument("--batch", type=whole_number(_MOST_BATCH), required=True, metavar="N", help="sequences of a step")
    made.add_argument(
        "--for", dest="objective", choices=_OBJECTIVES, default="time", help="what to make small (default: time)"
    )
    made.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUES",
        help="values of a setting; repeatable (default: usual)",
    )
    made.add_argument("--stack", metavar="NAME", help="software stack and version (default: that of the cluster)")
    _add_limits(made)
    add_prices(made)
    made.add_argument(
        "--within", type=number(0, 1), default=0.25, metavar="SHARE",
        help="power and heat of those that are up to so much slower than the fastest (default: 0.25)",
    )  # fmt: skip
    made.add_argument(
        "--measure", type=whole_number(50), default=6, metavar="N", help="configurations to measure, at most"
    )
    made.add_argument("--study", type=out_file, metavar="FILE", help="study of them to write (default: none)")
    made.add_argument("--figure", type=out_figure, metavar="FILE", help=".pdf, .png or .svg to draw (default: none)")
    add_config(made)
    return made


def _add_limits(made: argparse.ArgumentParser) -> None:
    limits = {
        "step-time": ("SECONDS", "of a step"),
        "energy": ("J", "of all GPUs per token"),
        "node-power": ("KW", "peak of a node at the plug"),
        "rack-power": ("KW", "peak of a rack, of a cluster with nodes_per_rack"),
        "power": ("KW", "peak of all nodes together, the budget of a hall"),
        "temp": ("DEGC", "of the hottest GPU"),
        "memory": ("GIB", "on the fullest GPU"),
    }
    limit = number(0, 1e15, is_least_allowed=False)
    for name, (unit, what) in limits.items():
        made.add_argument(
            f"--max-{name}", type=limit, default=math.inf, metavar=unit, help=f"{what} (default: no limit)"
        )
    made.add_argument(
        "--fits", type=number(0, 1), default=0.5, metavar="SHARE", help="least probability of fitting in memory"
    )


def run(arguments: argparse.Namespace) -> Answer:
    """Search, and write the study and the figure that are asked for."""
    from triplepoint.advise.search.search import Limits, search
    from triplepoint.advise.search.space import Question

    problems = Problems("search")
    if arguments.study is not None and arguments.study.suffix != ".yaml":
        problems.add(UserError(f"search: --study {arguments.study}: expected a name that ends in .yaml"))
    values = dict(pair for text in arguments.set if (pair := problems.call(_values, text)))
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
        found = search(
            question, arguments.config, arguments.objective, limits, arguments.within, arguments.measure,
            read_prices(arguments), lambda line: say(f"search: {line}"),
        )  # fmt: skip
    return _answer(found, arguments.config / "studies", arguments.study, arguments.figure)


def _values(text: str) -> tuple[str, list[Any]]:
    """Return a setting and the values it may have, `tp=2,4` or `overlap=[],[grad,param]`."""
    from triplepoint.config.yaml_file import load

    name, equals, values = text.partition("=")
    if not equals or not values.strip():
        raise UserError(f"search: --set {text[:60]}: expected KEY=VALUE,VALUE, such as tp=2,4")
    return name, load(f"[{values}]", f"search: --set {name}", "values")


def _answer(found: "Found", studies: Path, study: Path | None, figure: Path | None) -> Answer:
    """Return the answer, with the files that are asked for written."""
    from triplepoint.advise.search import text as answer
    from triplepoint.files import write_text

    content: dict[str, Any] = {
        "answer": answer.headline(found),
        "rows": answer.rows(found),
        "measure": answer.measured_content(found),
        "counts": found.counts,
        "nearest": found.nearest and {"run": found.nearest[0].run, "excess": found.nearest[1]},
        "study": study if found.chosen else None,
        "figure": figure if found.chosen else None,
    }
    text = answer.render(found)
    if found.chosen and study is not None:
        write_text(study, answer.study_of(found, study.stem))
        move = "" if study.resolve().parent == studies.resolve() else f"move it to {studies}, then "
        text += f"\nStudy: {study}; its cost: {move}triplepoint plan {study.stem} --cluster {found.question.cluster}"
    if found.chosen and figure is not None:
        from triplepoint.advise.search.figure import draw
        from triplepoint.figures.write import save

        save(draw(found), figure)
        text += f"\nFigure: {figure}"
    return Answer(content, text, status=0 if found.chosen else 1)
