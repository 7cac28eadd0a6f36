"""`--scheme` and `--rules`, in a module of its own: a stage depends on what it imports, and few sort kernels."""

import argparse
from pathlib import Path

from triplepoint.trace.taxonomy import SCHEMES, Scheme, load_scheme


def add_rules(parser: argparse.ArgumentParser) -> None:
    """Add `--scheme` and `--rules`, what kernels are told apart by."""
    parser.add_argument("--scheme", choices=SCHEMES, default="default", help="classes to sort kernels into")
    parser.add_argument("--rules", type=Path, metavar="FILE", help="YAML file of rules that go before the scheme's")


def load_rules(arguments: argparse.Namespace) -> Scheme:
    """Return the scheme that was asked for.

    Raises:
        UserError: If the file of rules is wrong.
    """
    return load_scheme(arguments.scheme, arguments.rules)
