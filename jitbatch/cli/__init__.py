"""The command `jitbatch`. What it needs beyond jax and numpy is imported only where a subcommand runs."""

from jitbatch.cli._main import main as main

__all__ = ["main"]
