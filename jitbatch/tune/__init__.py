"""The predicted cost of a batch, and the choice of executor and granularity for `"auto"`.

In: graphs, and the costs of the running backend.
Out: predicted seconds, and a `Choice`.
Invariants: nothing depends on a clock: the same calls lead to the same choices.
Imports: `util`, `core`, `ir`, `record`, `batch`, `schedule`, `execute`.
"""
