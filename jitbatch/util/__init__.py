"""Tools for every stage: errors, bounded caches, packed arrays, JAX's changing names, and values in samples.

In: nothing of jitbatch.
Out: small tools without knowledge of graphs or plans.
Invariants: every cache is a `Cache`, so that `clear_caches()` finds it; only `compat` depends on names and behaviour
that JAX may change.
Imports: only JAX and NumPy.
"""
