"""The capacity for the minibatches of a data set."""

import numpy as np

from jitbatch.execute.executor import SizeRequest
from jitbatch.execute.sizes import Sizes
from jitbatch.plan.capacity import Capacity
from jitbatch.plan.plannable import Plannable


def capacity_of_minibatches(data_set: Plannable, batch_size: int) -> Capacity:
    """Returns a capacity for minibatches of a data set, which is one recorded batch.

    It has room for the minibatches with the most nodes, in total and of each kind, and with headroom for a minibatch of
    samples that are spread over the data set.
    """
    graphs = data_set.batch.graphs
    kinds = len(data_set.batch.context.tables.kinds)
    counts = np.stack([np.bincount(graph.kind, minlength=kinds) for graph in graphs])
    columns = [counts.sum(axis=1), *counts.T[counts.any(axis=0)]]
    largest = {tuple(np.sort(np.argsort(-column, kind="stable")[:batch_size])) for column in columns}
    spread = np.linspace(0, len(graphs) - 1, batch_size).astype(int)

    def minibatch(samples: np.ndarray | tuple[int, ...]) -> Plannable:
        return data_set._replace(batch=data_set.batch.some(samples))

    plan = minibatch(spread).make(SizeRequest(Sizes(), headroom_for=batch_size))
    for samples in sorted(largest):
        plan = minibatch(samples).make(SizeRequest(plan.sizes))
    return plan.capacity
