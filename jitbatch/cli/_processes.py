"""Training in several processes: started here or elsewhere, joined, and in step with each other."""

import argparse
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from jitbatch.cli._errors import CommandError
from jitbatch.cli._settings import COUNT, NON_NEGATIVE, Settings
from jitbatch.util.errors import ProcessError

if TYPE_CHECKING:
    from jitbatch.step.channel import Channel

AUTO = "auto"
"""The `--coordinator` that JAX finds by itself: under SLURM, Kubernetes and Open MPI."""

OPTIONS = ("processes", "process", "coordinator", "local_processes", "heartbeat", "devices")

HEARTBEAT = 100
"""Seconds; JAX's default, too."""

GRACE = 15.0
"""Seconds that local processes get to end by themselves after one of them has failed."""

SEEN_WITHIN = 30.0
"""Seconds until other processes must see a file of process 0. Network file systems show new files late."""

FORWARDED = {
    getattr(signal, name): getattr(signal, other)
    for name, other in (("SIGINT", "SIGINT"), ("SIGTERM", "SIGTERM"), ("SIGHUP", "SIGTERM"))
    if hasattr(signal, name)
}
"""For each signal to this process, the signal to its local processes. They save and stop."""


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
        help=f"a process that is silent for so long has died, and the others stop (default: {HEARTBEAT})",
    )  # fmt: skip
    group.add_argument(
        "--devices", type=COUNT.parse, metavar="N", help="CPU devices of a process, each with its part of a minibatch"
    )


def join(arguments: argparse.Namespace) -> int:
    """Make this process one of several, if it is asked to. Nothing may be computed before. Returns the heartbeat."""
    import jax

    options = {name: getattr(arguments, name, None) for name in OPTIONS}
    if options["devices"] is not None:
        jax.config.update("jax_num_cpu_devices", options["devices"])
    address, heartbeat = options["coordinator"], options["heartbeat"] or HEARTBEAT
    if address is None:
        if options["processes"] is not None or options["process"] is not None:
            raise CommandError(
                "which processes belong together? Give --coordinator HOST:PORT, the same for all of them"
            )
        return heartbeat
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM, as the trainer does by itself
    seconds: dict[str, Any] = {"heartbeat_timeout_seconds": heartbeat, "shutdown_timeout_seconds": heartbeat}
    if address == AUTO:
        try:
            jax.distributed.initialize(**seconds)
        except ValueError as error:
            raise CommandError(
                f"no cluster is found by --coordinator {AUTO}, such as SLURM, Kubernetes or Open MPI ({error}) Give "
                "--coordinator HOST:PORT, --processes N and --process I"
            ) from None
        return heartbeat
    if not re.fullmatch(r".+:\d+", address):
        raise CommandError(f"--coordinator {address} is no HOST:PORT, such as 10.0.0.1:1234")
    if options["processes"] is None or options["process"] is None:
        raise CommandError("how many processes are there, and which is this? Give --processes N and --process I")
    if options["process"] >= options["processes"]:
        raise CommandError(
            f"of {options['processes']} processes the last is {options['processes'] - 1}: give --process below"
        )
    is_here = address.rpartition(":")[0] in ("127.0.0.1", "localhost")
    jax.distributed.initialize(
        address, options["processes"], options["process"], **seconds,
        coordinator_bind_address=address if is_here else None,  # None: process 0 listens on all addresses
    )  # fmt: skip
    return heartbeat


def start(count: int, command: Sequence[str]) -> int:
    """Run the command in local processes until all have ended. Returns the exit code of the first that failed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    options = ["--processes", str(count), "--coordinator", address]
    process_command = [sys.executable, "-m", "jitbatch", *_without_local(command), *options]
    running: list[subprocess.Popen[bytes]] = []
    with _ended(running), _signals_forwarded(running) as received:
        for process_id in range(count):  # in groups of their own: a terminal's Ctrl-C comes from here alone, once
            running.append(subprocess.Popen([*process_command, "--process", str(process_id)], process_group=0))
        while not any(process.poll() for process in running):
            if all(process.returncode == 0 for process in running):
                return 0
            time.sleep(0.1)
        process_id, code = next((i, process.returncode) for i, process in enumerate(running) if process.returncode)
        if not received:
            how = f"with exit code {code}" if code > 0 else f"by {signal.Signals(-code).name}"
            print(
                f"jitbatch: process {process_id} of {count} has ended {how}: the others stop",
                file=sys.stderr,
                flush=True,
            )
        until = time.monotonic() + GRACE
        while time.monotonic() < until and any(process.poll() is None for process in running):
            time.sleep(0.1)
        return code if code > 0 else 128 - code


@contextmanager
def _ended(running: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Leave no process behind."""
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


@contextmanager
def _signals_forwarded(running: Sequence[subprocess.Popen[bytes]]) -> Iterator[list[int]]:
    """Forward signals to local processes. Yields a list of the received signals."""
    received: list[int] = []

    def forward(signal_id: int, frame: FrameType | None) -> None:
        received.append(signal_id)
        for process in running:
            if process.poll() is None:
                process.send_signal(FORWARDED[signal_id])

    before = {signal_id: signal.signal(signal_id, forward) for signal_id in FORWARDED}
    try:
        yield received
    finally:
        for signal_id, handler in before.items():
            signal.signal(signal_id, handler)


def _without_local(command: Sequence[str]) -> list[str]:
    """
    >>> _without_local(["train", "listops", "--local-processes", "2", "--seed", "1"])
    ['train', 'listops', '--seed', '1']
    >>> _without_local(["train", "--local-processes=2"]), _without_local(["train", "--local", "2"])
    (['train'], ['train'])
    """
    kept, skips = [], False
    for part in command:
        name, has_value, _ = part.partition("=")
        is_local = name.startswith("--loc") and "--local-processes".startswith(name)  # options may be shortened
        if not skips and not is_local:
            kept.append(part)
        skips = is_local and not has_value
    return kept


class Together:
    """The processes of a run. In a run of one process, nothing is exchanged.

    Args:
        settings: the settings, which must be equal in all processes.
        heartbeat: the seconds after which a process that is silent has died.
    """

    def __init__(self, settings: Settings | None = None, heartbeat: int = HEARTBEAT):
        import jax

        from jitbatch.step.channel import Channel

        self.count = jax.process_count()
        self.is_first = jax.process_index() == 0
        self._heartbeat = heartbeat
        self._channel = None
        if self.count > 1:
            self._channel = Channel(range(self.count), {"settings": repr(settings)}, "jitbatch/training")

    @contextmanager
    def told(self) -> Iterator[None]:
        """A context that tells the other processes of an exception in it. If it comes from another process that has
        died or failed, that is said in place of it."""
        try:
            yield
        except BaseException as error:
            if self._channel is not None:
                if _is_of_devices(error):
                    self._look_for_cause(self._channel, error)
                self._channel.leave(error)
            raise

    def _look_for_cause(self, channel: "Channel", error: BaseException) -> None:
        """Raise the failure of another process, if there is one, for an error of devices."""
        from jitbatch.step.channel import LateError

        print("jitbatch: the devices of another process do not answer; looking for it", file=sys.stderr, flush=True)
        try:
            channel.exchange(None, seconds=1.5 * self._heartbeat)
        except LateError:
            return
        except ProcessError as cause:
            raise cause from error

    def of_first(self, text: str) -> str:
        """Returns the text of process 0."""
        from jitbatch.step.channel import Message

        if self._channel is None:
            return text
        said = self._channel.exchange(Message({"text": text}) if self.is_first else None)
        return said[0]["text"]

    def compare(self, settings: Settings) -> None:
        """Compares the settings of all processes with the next message."""
        if self._channel is not None:
            self._channel.about["settings"] = repr(settings)

    def directory_of_first(self, directory: Path | None) -> Path:
        """Returns the run directory, after all processes have seen the one that process 0 gives."""
        if self._channel is None:
            assert directory is not None
            return directory
        mark = None
        if self.is_first:
            assert directory is not None
            mark = directory.resolve() / f"seen-{uuid.uuid4().hex}"
            mark.touch()
        mark = Path(self.of_first(str(mark)))
        try:
            until = time.monotonic() + SEEN_WITHIN
            while not mark.exists():
                if time.monotonic() > until:
                    raise CommandError(
                        f"{mark.parent} on {socket.gethostname()} is not the run directory of process 0. Give --run a "
                        "directory on a disk that all machines share"
                    )
                time.sleep(0.1)
            self.heard()  # all have looked
        finally:
            if self.is_first:
                mark.unlink(missing_ok=True)
        return mark.parent if directory is None else directory

    def heard(self, **wishes: bool) -> set[str]:
        """Returns the names of the wishes of all processes."""
        from jitbatch.step.channel import Message

        own_wishes = [name for name, wish in wishes.items() if wish]
        if self._channel is None:
            return set(own_wishes)
        said = self._channel.exchange(Message({"wishes": own_wishes}) if own_wishes else None)
        return {name for content in said.values() for name in content["wishes"]}


def _is_of_devices(error: BaseException | None) -> bool:
    """Whether an error may come from a connection that broke: JAX's runtime raises it, and there was enough memory."""
    import jax

    while error is not None and not isinstance(error, jax.errors.JaxRuntimeError):
        error = error.__cause__ or error.__context__
    return error is not None and "RESOURCE_EXHAUSTED" not in str(error)
