"""Rollout of samples that need values: they run together from question to question.

In: an asynchronous function, shared arguments, and samples, which may arrive at any time.
Out: the result and the decisions of each sample, and the recording of its program.
Invariants: results equal those of `jitbatch.run` for one sample after the other, up to the last bits; a known path runs
no Python; with known types nothing is compiled; a finished sample occupies no rows.
Imports: all stages above.
"""
