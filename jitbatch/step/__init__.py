"""Compiled steps on samples: `jitbatch.jit` puts plans in the place of samples before `jax.jit` sees them.

In: a function of parameters and samples, as a training step is written.
Out: a `Jitted` step, whose programs are those of `jax.jit` on plans.
Invariants: the body is the user's; what it is given in the place of samples refuses everything but `.batch`.
Imports: all stages above.
"""
