"""The package pytorch-tree-lstm, which has child-sum Tree-LSTMs.

Orders of evaluation are prepared with its own function, as it advises; putting the trees of a minibatch together is
counted.
"""

import numpy as np
import torch
import treelstm
from torch_models import Model, divergence
from worker import Runner, Task, Unsupported, serve


def flatten(tree):
    """Tokens in pre-order, and (parent, child) for each edge, sorted by parent."""
    tokens, edges = [], []

    def add(node):
        number = len(tokens)
        tokens.append(node[0])
        edges.extend([(number, add(child)) for child in node[1]])
        return number

    add(tree)
    return tokens, sorted(edges)


def prepare(tree):
    tokens, edges = flatten(tree)
    # The package's function takes no tree of one node.
    orders = treelstm.calculate_evaluation_orders(edges, len(tokens)) if edges else (np.zeros(1, int), np.zeros(0, int))
    node_order, edge_order = map(torch.from_numpy, orders)
    return {
        "features": torch.tensor(tokens),
        "adjacency_list": torch.tensor(edges, dtype=torch.int64).reshape(-1, 2),
        "node_order": node_order,
        "edge_order": edge_order,
    }


class Sick(Model):
    def __init__(self, weights):
        cell = treelstm.TreeLSTM(weights["w_iou"].shape[0], weights["u_f"].shape[0])
        names = {"w_iou": "W_iou", "u_iou": "U_iou", "w_f": "W_f", "u_f": "U_f"}
        with torch.no_grad():
            for name, layer in names.items():
                getattr(cell, layer).weight.copy_(torch.tensor(weights.pop(name).T))
            for name, layer in (("b_iou", "W_iou"), ("b_f", "W_f")):
                getattr(cell, layer).bias.copy_(torch.tensor(weights.pop(name)))
        super().__init__(weights)
        self.optimizer.add_param_group({"params": list(cell.parameters())})
        self.cell = cell

    def loss(self, batch):
        trees = treelstm.batch_tree_input([pair[0] for pair in batch] + [pair[1] for pair in batch])
        sizes = trees.pop("tree_sizes")
        h, _ = self.cell(**trees | {"features": self.embed(trees["features"])})
        roots = h[torch.tensor(np.cumsum([0, *sizes[:-1]]))]
        return divergence(self, *roots.split(len(batch)), torch.stack([pair[2] for pair in batch]))


def make(task: Task) -> Runner:
    if task.workload != "SICK":
        raise Unsupported("the package has only child-sum Tree-LSTMs")
    samples = [(prepare(left), prepare(right), torch.tensor(target)) for left, right, target in task.read_samples()]
    return Runner(samples, Sick(task.read_weights()).run)


serve(make, "torch", "pytorch-tree-lstm")
