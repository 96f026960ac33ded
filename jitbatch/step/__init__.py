"""Compiled steps on samples: `jitbatch.jit` replaces samples by plans before it calls `jax.jit`.

In: a function of parameters and samples, such as a training step.
Out: a `Jitted` step. Its programs are those of `jax.jit` on plans.
Invariants: the body of the step is not changed; a `Samples` handle in it supports only `.batch`, `len` and `.mask`.
Imports: all stages above.
"""
