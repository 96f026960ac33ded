"""What the PyTorch peers have in common: parameters, a step of training, and heads of models."""

import torch
from torch.nn import functional as F
from worker import LEARNING_RATE, THREADS

torch.set_num_threads(THREADS)


class Model:
    """Parameters by name, as in the weights; embeddings have sparse gradients."""

    def __init__(self, weights):
        self.parameters = {name: torch.tensor(array, requires_grad=True) for name, array in weights.items()}
        self.optimizer = torch.optim.SGD(self.parameters.values(), LEARNING_RATE)

    def __getitem__(self, name):
        return self.parameters[name]

    def embed(self, tokens, name="embed"):
        return F.embedding(tokens, self[name], sparse=True)

    def loss(self, batch):
        """The sum of the losses of a minibatch."""
        raise NotImplementedError

    def run(self, batches, training):
        results = []
        for batch in batches:
            with torch.set_grad_enabled(training):
                loss = self.loss(batch) / len(batch)
            results.append(loss.item())
            if training:
                self.optimizer.zero_grad(set_to_none=True)
                loss.backward()
                self.optimizer.step()
        return results


def output(i, o, u, kept=0.0):
    c = torch.sigmoid(i) * torch.tanh(u) + kept
    return torch.sigmoid(o) * torch.tanh(c), c


def lstm(gates, c):
    i, f, o, u = gates.chunk(4, dim=-1)
    return output(i, o, u, torch.sigmoid(f + 1) * c)


def divergence(model, left, right, target):
    """The sum of the losses of pairs, given the states of both roots and the distributions over scores."""
    weights = torch.cat([model["product"], model["distance"]])
    features = torch.cat([left * right, (left - right).abs()], dim=-1)
    hidden = torch.sigmoid(features @ weights + model["b_similarity"])
    predicted = F.log_softmax(hidden @ model["out"] + model["b_out"], dim=-1)
    return (torch.xlogy(target, target) - target * predicted).sum()
