"""`triplepoint predict IN.csv OUT.csv`."""

import argparse
from pathlib import Path

from triplepoint.cli.arguments import in_file, make_parser, out_file, say

_COLUMNS = """\
columns of IN.csv, one configuration a row; blanks are derived or take the default; other columns are named and passed
over, but one that looks like a misspelt one of these is refused:
  id            key of the row in OUT.csv (default: its number)
  model         name; of one in config/architectures, nothing else about the architecture is needed
  hidden layers heads kv_heads ffn vocab params_B        the architecture, wins over the name; params_B decides between
                variants of one that is not known by name
  experts topk moe_ffn                                   experts, 0 or blank for a dense model
  seq mbs gbs   tokens per sequence, sequences per micro-batch and rank, sequences per step
  gpu n_gpus    such as H100-SXM-80GB; memory in the name is followed
  tp pp vp cp ep etp dp                                  parallel degrees; dp follows from n_gpus
  pipeline_layers  of each stage, or of each of pp*vp virtual ones in the order of the model (blank: an even split)
  fsdp          DDP, distributed optimizer, ZeRO-1 to 3, FSDP
  precision     bf16, fp16, fp8, fp32
  recompute     none, selective, full, full N layers of each (virtual) stage (blank: the least that fits in memory)
  seq_parallel  yes or no
  framework     software stack and version, such as 'NeMo dgxc v25.04'
  trainable     all, or LoRA with its rank (blank: LoRA if a part of `notes` begins so)
  task          training (default) or inference: prompts of `seq` tokens, `gbs` sequences at a time
  output_tokens of inference, made of each prompt
  interconnect  between nodes, such as '8x400G IB/node' (blank: what the GPU type usually comes with)

columns of OUT.csv:
  id status reason         ok; oom: does not fit in memory; invalid: contradicts itself; unsupported: not simulated
  step_time_s step_time_lo_s step_time_hi_s              one step (of inference, a whole batch) and the 90 % interval
  tokens_per_s_per_gpu mfu memory_gib bubble_fraction exposed_comm_s bottleneck
  time_to_first_token_s time_per_output_token_s exposed_comm_per_output_token_s
                           of inference; ends of 90 % intervals of the first two in ..._lo_... and ..._hi_...
  gpu_power_w gpu_power_peak_w node_power_w gpu_temp_max_c throttle_fraction gpu_energy_per_token_j
                           of training on H100, H200 and MI250; ends of 90 % intervals in ..._lo_... and ..._hi_...

example:
  triplepoint predict tests/data/throughput/training_throughput.csv predicted.csv
"""


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    made = make_parser("predict", "Predict step time, memory and bottleneck of training configurations, one a row.")
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.epilog = _COLUMNS
    made.add_argument("source", type=in_file, metavar="IN.csv", help="configurations, one a row")
    made.add_argument("target", type=out_file, metavar="OUT.csv", help="predictions, keyed by id; written whole or not")
    made.add_argument(
        "--config",
        type=Path,
        default=Path("config"),
        metavar="DIR",
        help="folder of the configuration (default: config)",
    )
    return made


def run(arguments: argparse.Namespace) -> None:
    """Predict the rows of a table."""
    from triplepoint.simulate.predict.batch import predict_table

    print(predict_table(arguments.source, arguments.target, arguments.config, say))
