"""What several processes cost: agreeing, and a step, on 1, 2 and 4 processes of this machine.

    python bench/distributed.py [--processes 1 2 4] [--rounds 100]

The processes share the cores, so the figures are overhead, not speed-up. `agree` is a round in which nobody says
anything; `say` one in which each process says a capacity, and all unite them; `step` is a small step on small trees.

For a model of many processes, two figures in processor time, which a busy machine changes less: `service`, what a round
costs process 0, where JAX's coordination service runs, more than another process, for each process; and `unite`, what
it costs a process to read and unite a capacity, for each process that says one.
"""

import argparse
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import jax


def clocked(run: Callable[[], object], rounds: int) -> tuple[float, float]:
    """The median of the milliseconds of a round, and the milliseconds of processor time of a round."""
    times, spent = [], time.process_time()
    for _ in range(rounds):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    spent = time.process_time() - spent
    return 1e3 * statistics.median(times[rounds // 10 :]), 1e3 * spent / rounds


def measure(process: int, processes: int, address: str, rounds: int) -> None:
    """One of the processes. Process 0 prints."""
    jax.distributed.initialize(address, processes, process, coordinator_bind_address=address)
    import jax.numpy as jnp

    import jitbatch
    from jitbatch.plan.capacity import Capacity
    from jitbatch.step.channel import Channel, Message

    @jitbatch.jitbatch
    def node(params, left, right):
        return jnp.tanh(left @ params + right @ params)

    @jitbatch.jitbatch
    def encode(params, tree):
        return node(params, *(encode(params, t) for t in tree)) if isinstance(tree, tuple) else params[tree]

    params = jnp.ones((16, 16)) / 16
    trees = [((1, 2), (3, (4, number % 16))) for number in range(32)]
    text = encode.plan(params, trees).capacity.to_json()
    channel = Channel(range(processes), {}, "bench")

    def say() -> None:
        said = channel.exchange(Message({"capacity": text}))
        found = [Capacity.from_json(content["capacity"]) for content in said.values()]
        for one in found[1:]:
            found[0] = found[0] | one

    mesh = jax.make_mesh((jax.device_count(),), ("data",))

    @jitbatch.jit(mesh=mesh, samples="trees")
    def step(params, trees):
        return params - 1e-3 * jax.grad(lambda p: encode.batch(p, trees).sum())(params)

    agree, agree_spent = clocked(lambda: channel.exchange(None), rounds)
    saying, saying_spent = clocked(say, rounds)
    time_of_step, _ = clocked(lambda: jax.block_until_ready(step(params, trees)), rounds)
    said = channel.exchange(Message({"agree": agree_spent, "say": saying_spent}))
    if process == 0:
        times = "  ".join(f"{one:8.2f} ms" for one in (agree, saying, time_of_step))
        print(f"{processes:9}  {times}   {len(text):,} bytes", end="", flush=True)
        others = [said[other] for other in range(1, processes)]
        if others:
            service = (said[0]["agree"] - statistics.mean(one["agree"] for one in others)) / processes
            unite = statistics.mean(one["say"] - one["agree"] for one in others) / processes
            print(f"  {service:8.3f} ms  {unite:8.3f} ms", end="")
        print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)  # process, processes, address
    options = parser.parse_args()
    if options.one:
        process, processes, address = options.one
        measure(int(process), int(processes), address, options.rounds)
        return
    print("processes      agree          say         step    a capacity     service        unite", flush=True)
    for count in options.processes:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        own = [sys.executable, __file__, "--rounds", str(options.rounds), "--one"]
        running = [subprocess.Popen([*own, str(number), str(count), address]) for number in range(count)]
        for one in running:
            one.wait()


if __name__ == "__main__":
    main()
