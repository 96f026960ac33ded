"""The command `jitbatch`. Packages other than jax and numpy are imported only when a subcommand runs."""

from jitbatch.cli._main import main as main

__all__ = ["main"]
