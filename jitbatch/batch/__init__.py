"""From the graphs of a minibatch to one batch: decide types, split cells of loops, merge equal calls, pack input rows.

In: a `Graph` for each sample, and the leaves of the samples.
Out: an `Analysis`: the joined nodes with the batch's types, the distinct nodes, and a `Problem`.
Invariants: only calls of equal types with bitwise equal operands are merged; types are in canonical order.
Imports: `util`, `core`, `ir`, `record`.
"""
