"""What a batch costs, and which executor and granularity `"auto"` chooses by that.

In: graphs, and the costs of the running backend.
Out: predicted seconds, and a `Choice`.
Invariants: nothing depends on a clock: the same calls lead to the same choices.
Imports: `util`, `ir`, `record`, `batch`, `schedule`, `execute`.
"""
