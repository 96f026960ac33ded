"""Training in several processes: started here or elsewhere, joined, and in step with each other."""

import argparse
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from jitbatch.cli._errors import CommandError
from jitbatch.cli._settings import COUNT, NON_NEGATIVE, Settings
from jitbatch.util.errors import ProcessError

AUTO = "auto"
"""The `--coordinator` that JAX finds by itself: under SLURM, Kubernetes and Open MPI."""

OPTIONS = ("processes", "process", "coordinator", "local_processes", "heartbeat", "devices")

GRACE = 15.0
"""Seconds that local processes get to end by themselves after one of them has failed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("several processes, which train one model on parts of each minibatch")
    group.add_argument("--processes", type=COUNT.parse, metavar="N", help="how many processes there are")
    group.add_argument("--process", type=NON_NEGATIVE.parse, metavar="I", help="which of them this is, from 0 on")
    group.add_argument(
        "--coordinator", metavar="HOST:PORT",
        help=f"where process 0 runs, and a free port there; {AUTO}: JAX finds all (SLURM, Kubernetes, Open MPI)",
    )  # fmt: skip
    group.add_argument("--local-processes", type=COUNT.parse, metavar="N", help="start N processes on this machine")
    group.add_argument(
        "--heartbeat", type=COUNT.parse, metavar="SECONDS",
        help="a process that is silent for so long has died, and the others stop (default: 100, at least 10)",
    )  # fmt: skip
    group.add_argument(
        "--devices", type=COUNT.parse, metavar="N", help="CPU devices of a process, each with its part of a minibatch"
    )


def join(arguments: argparse.Namespace) -> None:
    """Make this process one of several, if it is asked to. Nothing may be computed before."""
    import jax

    options = {name: getattr(arguments, name, None) for name in OPTIONS}
    if options["devices"] is not None:
        jax.config.update("jax_num_cpu_devices", options["devices"])
    address = options["coordinator"]
    if address is None:
        if options["processes"] is not None or options["process"] is not None:
            raise CommandError(
                "which processes belong together? Give --coordinator HOST:PORT, the same for all of them"
            )
        return
    heartbeat = max(options["heartbeat"] or 100, 10)
    if address == AUTO:
        jax.distributed.initialize(heartbeat_timeout_seconds=heartbeat)
        return
    if options["processes"] is None or options["process"] is None:
        raise CommandError("how many processes are there, and which is this? Give --processes N and --process I")
    if options["process"] >= options["processes"]:
        raise CommandError(
            f"of {options['processes']} processes the last is {options['processes'] - 1}: give --process below"
        )
    is_here = address.rpartition(":")[0] in ("127.0.0.1", "localhost")
    jax.distributed.initialize(
        address, options["processes"], options["process"], heartbeat_timeout_seconds=heartbeat,
        coordinator_bind_address=address if is_here else None,  # None: process 0 listens on all addresses
    )  # fmt: skip


def start(count: int, command: Sequence[str]) -> int:
    """Run the command in local processes until all have ended. Returns the exit code of the first that failed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    options = ["--processes", str(count), "--coordinator", address]
    process_command = [sys.executable, "-m", "jitbatch", *_without(command, "--local-processes"), *options]
    running = [subprocess.Popen([*process_command, "--process", str(process_id)]) for process_id in range(count)]
    try:
        while all(process.poll() in (None, 0) for process in running):
            if not any(process.poll() is None for process in running):
                return 0
            time.sleep(0.2)
        code = next(process.returncode for process in running if process.returncode)
        until = time.monotonic() + GRACE
        while time.monotonic() < until and any(process.poll() is None for process in running):
            time.sleep(0.2)
        return code if code > 0 else 128 - code
    except KeyboardInterrupt:  # the processes get it, too: they save and stop
        return max(process.wait() for process in running)
    finally:
        for process in running:
            process.kill()
            process.wait()


def _without(command: Sequence[str], option: str) -> list[str]:
    """
    >>> _without(["train", "listops", "--local-processes", "2", "--seed", "1"], "--local-processes")
    ['train', 'listops', '--seed', '1']
    >>> _without(["train", "--local-processes=2"], "--local-processes")
    ['train']
    """
    kept, skips = [], False
    for part in command:
        if not skips and part.partition("=")[0] != option:
            kept.append(part)
        skips = part == option
    return kept


class Together:
    """The processes of a run. In a run of one process, nothing is exchanged.

    Args:
        settings: the settings, which must be equal in all processes.
    """

    def __init__(self, settings: Settings | None = None):
        import jax

        from jitbatch.step.channel import Channel

        self.count = jax.process_count()
        self.is_first = jax.process_index() == 0
        self._channel = Channel(range(self.count), {"settings": repr(settings)}) if self.count > 1 else None

    @contextmanager
    def told(self) -> Iterator[None]:
        """A context that tells the other processes of an exception in it."""
        try:
            yield
        except BaseException as error:
            if self._channel is not None:
                self._channel.leave(error)
            raise

    def of_first(self, text: str) -> str:
        """Returns the text of process 0."""
        from jitbatch.step.channel import Message

        if self._channel is None:
            return text
        said = self._channel.exchange(Message({"text": text}) if self.is_first else None)
        return said[0]["text"]

    def heard(self, **wishes: bool) -> set[str]:
        """Returns the names of what any process wishes."""
        from jitbatch.step.channel import Message

        own_wishes = [name for name, wish in wishes.items() if wish]
        if self._channel is None:
            return set(own_wishes)
        said = self._channel.exchange(Message({"wishes": own_wishes}) if own_wishes else None)
        return {name for content in said.values() for name in content["wishes"]}


@contextmanager
def deaths_told() -> Iterator[None]:
    """If the devices of another process do not answer, say which process has died."""
    import jax

    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if jax.process_count() == 1:
            raise
        print("jitbatch: another process does not answer; looking for the one that died", file=sys.stderr, flush=True)
        try:
            Together().heard()
        except ProcessError as death:
            raise death from error
        raise
