"""`triplepoint predict FILE [OUT]`, and `triplepoint predict --published IN.csv OUT.csv` for published runs."""

import argparse
import math
from collections import Counter
from typing import TYPE_CHECKING

from triplepoint.cli.answer import Answer
from triplepoint.cli.arguments import add_config, in_table, make_parser, out_table, require_different_files, say
from triplepoint.cli.progress import Progress
from triplepoint.errors import UserError
from triplepoint.units import counted, show_seconds

if TYPE_CHECKING:
    from triplepoint.simulate.predict.prediction import Prediction

_ABOUT = """\
FILE has the keys of a study's settings (docs/config.md): model, cluster and global_batch_size, and what differs from
the defaults: engine (default: simulated), tp, pp, micro_batch_size, recompute, task, ... Each row may also have
  id            key of the row in OUT, unique, text in a CSV (default: its number)
  stack         software stack and version, such as 'NeMo dgxc v25.04' (default: that of the engine)
YAML and JSON hold one configuration, a list of them, or a study, each of whose points is predicted once. A path that
ends in .csv, .tsv or .txt is a table, with commas, semicolons or tabs. There a blank cell leaves its key out, and a
list is written [grad, param]. A wrong key or value is refused in one line. A point that cannot run, or a setting
without effect, is a row whose reason is the line of `plan`. How to read the answer: docs/predict.md.

columns of OUT:
  id run                   run: that of the point in `plan`
  status reason            ok; oom: does not fit in memory; undecided: may not; invalid: cannot run; unsupported:
                           not simulated
  step_time_s step_time_lo_s step_time_hi_s              one step (of inference, a whole batch) and the 90 % interval
  tokens_per_s_per_gpu mfu memory_gib bubble_fraction exposed_comm_s bottleneck
  time_to_first_token_s time_per_output_token_s exposed_comm_per_output_token_s
                           of inference; ends of 90 % intervals of the first two in ..._lo_... and ..._hi_...
  software attention launch recompute_modules fp8_recipe optimizer_moments overlap dispatch dispatch_precision
  token_nodes              what the software does, as stated or usual: its entry in config/calibration/stacks.yaml
  gpu_power_w gpu_power_peak_w node_power_w gpu_temp_c gpu_temp_max_c sm_clock_mhz sm_clock_busy_mhz
  throttle_fraction lost_to_power_limit_fraction lost_to_heat_fraction lost_to_brake_fraction gpu_energy_per_token_j
                           on H100, H200 and MI250, on others reason says that they are not known; ends of 90 %
                           intervals in ..._lo_... and ..._hi_...

With --rank, between the key and these:
  rank num_ranked          place among rows that train the same model with the same batch on as many GPUs of one type
                           and stack, and their number; of rows that run
  slower_fraction slower_lo_fraction slower_hi_fraction
                           step time over the fastest one's, less 1, with its 90 % interval: what is not known of all
                           layouts alike cancels
  tied_with_first          whether it is as fast as the first with a chance of 10 % or more; no layout that
                           only recomputes more

With --published, FILE is a CSV of training runs as others publish them, one run a row. A blank cell is derived or takes
the default. Other columns are named and left unread; one that looks like a misspelt column of these is refused:
  id            key of the row in OUT (default: its number)
  model         name; of one in config/published/models.yaml, nothing else about the architecture is needed
  hidden layers heads kv_heads ffn vocab params_B        the architecture, wins over the name; params_B decides between
                variants of one that is not known by name
  experts topk moe_ffn                                   experts, 0 or blank for a dense model
  seq mbs gbs   tokens per sequence, sequences per micro-batch and rank, sequences per step
  gpu n_gpus    a name in config/gpus, or as people write it: H100-SXM-80GB, 'NVIDIA H100 PCIe', A100-SXM4-40GB, 'GB200
                NVL72'; one that several could have is refused unless `interconnect` or `notes` tell (NVLink, HGX, 40GB)
  num_mtp_layers  layers of multi-token prediction (blank: none)
  capacity_factor  of experts (blank: no limit)
  tp pp vp cp ep etp dp                                  parallel degrees; dp follows from n_gpus
  pipeline_layers  of each stage, or of each of pp*vp virtual ones in the order of the model (blank: an even split)
  fsdp          DDP, distributed optimizer, ZeRO-1 to 3, FSDP
  offload       in the host's memory: none, or some of optim activations (blank: none)
  precision     bf16, fp16, fp8, nvfp4, fp32
  recompute     none, selective, full, full N layers of each (virtual) stage (blank: the least that fits in memory)
  seq_parallel  yes or no (blank: yes where experts on several ranks beside tp need it, else no)
  framework     software stack and version, such as 'NeMo dgxc v25.04'
  trainable     all, or LoRA with its rank (blank: LoRA if a part of `notes` begins so)
  task          training (default) or inference: prompts of `seq` tokens, `gbs` sequences at a time
  output_tokens of inference, generated for each prompt
  attention     unfused, FlashAttention 1 to 3, SDPA, cuDNN, Transformer Engine, CK (blank: the stack's)
  launch        eager, compiled, CUDA graphs (blank: as the framework's name says, else the stack's)
  recompute_modules  of selective recomputation, such as core_attn mla_up_proj, or every_other (blank: the stack's)
  fp8_recipe    delayed, tensorwise, rowwise, blockwise, mxfp8 (blank: as in `precision`, FP8-CS, else the stack's)
  optimizer_moments  of Adam: fp32, bf16, 8bit (blank: the stack's)
  overlap       communication overlapped with computation: none, or some of grad param tp ep (blank: the stack's)
  dispatch dispatch_precision token_nodes                experts over nodes: all-to-all, DeepEP or HybridEP; format of
                tokens sent; nodes of a token's experts, at most (blank: the stack's)
  interconnect  nodes and what is between them, such as '8x400G IB/node', '4 GPUs/node, RoCE 4x200', 'NVL36',
                'rail-optimised, 2:1 oversubscription', 100GbE (blank: what the GPU type usually comes with)
  notes         only the memory of the GPU and LoRA are read from them
A row that contradicts itself, or has a setting that can have no effect in it, is invalid. Where a word has
several meanings or none, `reason` says how it was read.
"""
_EXAMPLES = (
    "triplepoint predict layouts.yaml --rank",
    "triplepoint predict config/studies/parallelism.yaml predicted.csv",
    "triplepoint predict --published tests/data/throughput/training_throughput.csv predicted.csv",
    "triplepoint predict - --time-only --json < point.yaml",
)


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    parser = make_parser(
        "predict",
        "Predict time, memory, power and bottleneck of configurations before they are run.",
        _EXAMPLES,
        _ABOUT,
        answer={"rows": "columns of OUT, null where a cell is blank", "out": "file that was written, or null"},
    )
    parser.add_argument(
        "source", type=in_table, metavar="FILE",
        help="configurations: .csv, .tsv, .txt, .yaml, .yml or .json; - for standard input",
    )  # fmt: skip
    parser.add_argument(
        "target", type=out_table, nargs="?", metavar="OUT", default=False,
        help="CSV with all columns to write, - for standard output (default: none, a summary is printed)",
    )  # fmt: skip
    parser.add_argument(
        "--published", action="store_true", help="FILE is a table of published training runs, see below"
    )
    parser.add_argument(
        "--simulated", action="append", default=[], metavar="NAME",
        help="give points on this cluster the run ids of 'plan --simulated NAME'; repeatable (default: none)",
    )  # fmt: skip
    parser.add_argument(
        "--time-only", action="store_true",
        help="leave power, heat and clocks out: several times faster, with clocks as in the fitted measurements",
    )  # fmt: skip
    parser.add_argument(
        "--rank", action="store_true",
        help="rank layouts of one training: columns rank ... tied_with_first, see below",
    )  # fmt: skip
    add_config(parser)
    return parser


def run(arguments: argparse.Namespace) -> Answer:
    """Predict the rows of a file."""
    source, config = arguments.source, arguments.config
    if arguments.target:
        require_different_files(source, arguments.target)
    if arguments.published and arguments.simulated:
        raise UserError(
            "predict: --simulated simulates clusters of the configuration, and a --published table has none; leave "
            "one out"
        )
    rows: list[tuple[dict[str, object], Prediction]]
    from triplepoint.predictions import predict_file
    from triplepoint.published.table import predict_table

    with Progress(f"reading {source}") as progress:
        if arguments.published:
            published = predict_table(source, config, say, not arguments.time_only, progress)
            rows = [({"id": key}, prediction) for key, prediction in published]
        else:
            predicted = predict_file(source, config, progress, arguments.simulated, not arguments.time_only)
            rows = [({"id": key, "run": run}, prediction) for key, run, prediction in predicted]
    if arguments.rank:
        from triplepoint.ranking import rank

        ranked = rank([prediction for _, prediction in rows], config)
        rows = [(keys | columns, prediction) for (keys, prediction), columns in zip(rows, ranked, strict=True)]
    values = [{name: _value(name, cell) for name, cell in keys.items()} | it.values() for keys, it in rows]
    content = {
        "rows": [{k: None if v == "" else v for k, v in row.items()} for row in values], "out": arguments.target or None
    }  # fmt: skip
    if arguments.target is False:
        return Answer(content, _summary(rows, str(source)))
    text = _table(rows)
    if arguments.target is None:
        return Answer(content, text)
    from triplepoint.files import write_text

    write_text(arguments.target, text)
    counts = Counter(str(prediction.status) for _, prediction in rows)
    words = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    return Answer(content, f"predict: {counted(len(rows), 'row')} written to {arguments.target}: {words}")


def _value(name: str, cell: object) -> object:
    """Convert a cell of the ranking for the JSON; cells of other columns stay as they are."""
    if name == "tied_with_first" and cell:
        return cell == "yes"
    return float(str(cell)) if name.endswith("_fraction") and cell else cell


def _summary(rows: "list[tuple[dict[str, object], Prediction]]", source: str) -> str:
    """Return predictions as text: the answer in a sentence, then a line for each."""
    is_ranked = bool(rows) and "rank" in rows[0][0]
    if is_ranked:
        rows = sorted(rows, key=lambda row: int(str(row[0]["rank"] or len(rows) + 1)))
    lines = [("", *("rank", "slower %") * is_ranked, *_SUMMARY.values())]
    for keys, prediction in rows:
        place = (str(keys["rank"]), _slower(keys)) if is_ranked else ()
        lines.append((_name(keys), *place, *(_show_value(prediction, name) for name in _SUMMARY)))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    explained = [(keys, prediction) for keys, prediction in rows if prediction.reason]
    first = _first_line(rows)
    failures = [(keys, failed) for keys, failed in explained if failed.status != "ok"]
    reasons = [f"{_name(keys)}: {failed.reason}" for keys, failed in failures if not first.endswith(failed.reason)]
    notes = dict.fromkeys(prediction.reason for _, prediction in explained if prediction.status == "ok")
    end = f"in brackets: 90 % intervals. All columns: triplepoint predict {source} - (or OUT.csv, or --json)"
    return "\n".join([first, "", *table, "", *reasons, *notes, end])


def _first_line(rows: "list[tuple[dict[str, object], Prediction]]") -> str:
    """Return the answer in a sentence: the step time of a single configuration, or the number of each status."""
    if len(rows) != 1:
        counts = Counter(str(prediction.status) for _, prediction in rows)
        told = f"{len(rows)} configurations: {', '.join(f'{num} {status}' for status, num in counts.most_common())}"
        firsts = [_name(keys) for keys, _ in rows if keys.get("rank") == 1]
        tied = [_name(keys) for keys, _ in rows if keys.get("tied_with_first") == "yes" and keys["rank"] != 1]
        if len(firsts) == 1:  # one training: with several, each has a first
            told += f". Fastest: {firsts[0]}" + (f"; may be as fast: {', '.join(tied)}" if tied else "")
        return told
    ((keys, prediction),) = rows
    if not prediction.step_time_s > 0 or prediction.status not in ("ok", "undecided"):
        return f"{_name(keys)}: {prediction.status}: {prediction.reason}"
    low, high = (show_seconds(value) for value in (prediction.step_time_lo_s, prediction.step_time_hi_s))
    unit = "batch" if prediction.time_to_first_token_s > 0 else "step"
    largest = f"; largest part of the time: {prediction.bottleneck}" if prediction.bottleneck else ""
    speed = f"{prediction.tokens_per_s_per_gpu:.4g} token/s per GPU"
    return f"{_name(keys)}: {show_seconds(prediction.step_time_s)} a {unit} ({low} to {high}), {speed}{largest}"


_SUMMARY = {
    "status": "status", "step_time_s": "step s", "tokens_per_s_per_gpu": "token/s/GPU", "mfu": "MFU %",
    "memory_gib": "GiB", "gpu_power_w": "GPU W", "gpu_temp_max_c": "max degC", "gpu_energy_per_token_j": "J/token",
}  # fmt: skip
"""Columns of the summary: heading by column of a prediction. A value with an interval is followed by it."""


def _name(keys: "dict[str, object]") -> str:
    """Return the name of a row: its id if the file gives one, else its run id, else its number."""
    own = str(keys["id"])
    return str(keys.get("run") or own) if own.isdigit() else own


def _slower(keys: "dict[str, object]") -> str:
    """Return how much slower than the first a row is, in percent with the interval; empty for a row without rank."""
    if not keys["slower_fraction"]:
        return ""
    share, low, high = (100 * float(str(keys[f"slower_{end}fraction"])) for end in ("", "lo_", "hi_"))
    return f"{share:.1f} ({low:.1f} to {high:.1f})" if share else "0"


def _interval(low: float, high: float) -> str:
    return f"{low:.3g} to {high:.3g}"


def _show_value(prediction: "Prediction", name: str) -> str:
    """Return a value of a prediction as text, with its interval if it has one; empty if it is unknown."""
    values = prediction.values()
    value = values[name]
    if not isinstance(value, float):
        return str(value)
    if math.isnan(value):
        return ""
    stem, _, unit = name.rpartition("_")
    low, high = (values.get(f"{stem}_{end}_{unit}") for end in ("lo", "hi"))
    scaled = 100 * value if name == "mfu" else value
    if isinstance(low, float) and isinstance(high, float) and not math.isnan(low):
        return f"{scaled:.4g} ({_interval(low, high)})"
    return f"{scaled:.4g}"


def _table(rows: "list[tuple[dict[str, object], Prediction]]") -> str:
    """Return predictions as CSV, with the columns that identify a row in front."""
    from triplepoint.files import csv_text
    from triplepoint.simulate.predict.prediction import COLUMNS

    columns = (*(rows[0][0] if rows else ("id",)), *COLUMNS)
    return csv_text(columns, (keys | prediction.cells() for keys, prediction in rows))
