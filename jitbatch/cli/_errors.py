"""Errors of the command, printed without a traceback."""

import importlib
import sys
from collections.abc import Sequence

from jitbatch.util.errors import JitbatchError


class CommandError(JitbatchError):
    """The command cannot do its task. The message has the reason and the remedy."""


def require(modules: Sequence[str], extra: str) -> None:
    """Say which extra to install where one of its modules is missing."""
    for module in modules:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            # A module that is there but lacks one of its own dependencies is another problem than ours.
            if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
                raise
            raise CommandError(
                f"{module} is not installed. Install it by: pip install -e '.[{extra}]' in a clone of jitbatch"
            ) from None


def warn(text: str) -> None:
    print(f"jitbatch: warning: {text}", file=sys.stderr)
