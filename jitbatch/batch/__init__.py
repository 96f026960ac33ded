"""From the graphs of a minibatch to one batch: types, cells split for loops, equal calls merged, input rows.

In: a `Graph` for each sample, and the leaves of the samples.
Out: an `Analysis`: the joined nodes in terms of the batch's types, which of them are distinct, and a `Problem`.
Invariants: calls are merged only where they compute the same, bit by bit; types are in canonical order.
Imports: `util`, `ir`, `record`.
"""
