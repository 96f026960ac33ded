"""The order in which nodes run, and the nodes that run together.

In: a `Problem`: types, levels and edges of the distinct nodes.
Out: the step of each node, assigned by a `Policy`; in a loop, the round of each node.
Invariants: nodes of a step have one type and do not depend on each other; the order of samples does not matter.
Imports: `util`, `core`, `ir`, `record`, `batch`.
"""
