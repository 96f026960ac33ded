"""Samples that look at values: they wait where they ask, what all of them need is run together, and they go on.

In: an asynchronous function, shared arguments, and samples, which may come at any time.
Out: the result and the decisions of each sample, and the recordings of the programs that they turned out to be.
Invariants: results are those of `jitbatch.run`, one sample after the other, up to the last bits; a path that was walked
before runs no Python; once the types are known nothing is compiled; a sample that has ended leaves no row behind.
Imports: all stages above.
"""
