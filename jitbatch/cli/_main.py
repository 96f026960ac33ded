"""The command and its subcommands."""

import argparse
import sys
from collections.abc import Sequence

import jitbatch
from jitbatch.cli import _explain, _train
from jitbatch.util.errors import JitbatchError

COMMANDS = {"explain": _explain, "train": _train}
"""Each has `HELP`, `add_arguments(parser)` and `run(arguments)`, which returns an exit code. Importing it is cheap."""

INTERRUPTED = 130
"""The exit code after Ctrl-C, as in shells."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand. Errors that a person can repair are printed without a traceback."""
    words = sys.argv[1:] if argv is None else list(argv)
    arguments = make_parser().parse_args(words, argparse.Namespace(words=words))
    try:
        return COMMANDS[arguments.command].run(arguments)
    except JitbatchError as error:
        print(f"jitbatch: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="jitbatch", description="vmap for samples that do not have the same shape.")
    parser.add_argument("--version", action="version", version=f"jitbatch {jitbatch.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, command in COMMANDS.items():
        command.add_arguments(commands.add_parser(name, help=command.HELP, description=command.HELP))
    return parser
