"""PyTorch, sample by sample, as one writes it without thinking of minibatches; gradients are of a whole minibatch."""

import torch
from torch.nn import functional as F
from torch_models import Model, divergence, lstm, output
from worker import Runner, Task, serve


class Sick(Model):
    def node(self, tree):
        token, below = tree
        children = [self.node(child) for child in below]
        x = self.embed(torch.tensor(token))
        iou = x @ self["w_iou"] + self["b_iou"]
        if not children:
            return output(*iou.chunk(3))
        h, c = (torch.stack(part) for part in zip(*children, strict=True))
        forget = torch.sigmoid(x @ self["w_f"] + self["b_f"] + h @ self["u_f"])
        return output(*(iou + h.sum(0) @ self["u_iou"]).chunk(3), (forget * c).sum(0))

    def loss(self, batch):
        return sum(
            divergence(self, self.node(left)[0], self.node(right)[0], torch.tensor(target))
            for left, right, target in batch
        )


class Sst(Model):
    def states(self, tree):
        if not isinstance(tree, list):
            return [output(*(self.embed(torch.tensor(tree)) @ self["leaf"]).chunk(3))]
        left, right = map(self.states, tree)
        (left_h, left_c), (right_h, right_c) = left[-1], right[-1]
        i, fl, fr, o, u = (left_h @ self["left"] + right_h @ self["right"] + self["bias"]).chunk(5)
        return [*left, *right, output(i, o, u, torch.sigmoid(fl) * left_c + torch.sigmoid(fr) * right_c)]

    def loss(self, batch):
        total = torch.zeros(())
        for tree, labels in batch:
            h = torch.stack([h for h, _ in self.states(tree)])
            total = total + F.cross_entropy(h @ self["out"], torch.tensor(labels), reduction="sum")
        return total


class ListOps(Model):
    def symbol(self, token):
        return self["embed.embedding"][token]

    def scores(self, h):
        return h @ self["out.kernel"] + self["out.bias"]

    def encode(self, expression):
        operator, *arguments = expression
        h = self.symbol(operator)
        c = torch.zeros_like(h)
        for argument in arguments:
            nested = isinstance(argument, list)
            x = self.digits(self.encode(argument)) if nested else self.symbol(argument)
            h, c = lstm(torch.cat([h, x]) @ self["gates.kernel"] + self["gates.bias"], c)
        return h

    def digits(self, h):
        return self.scores(h).softmax(-1) @ self["embed.embedding"][:10]

    def loss(self, batch):
        return sum(F.cross_entropy(self.scores(self.encode(one)), torch.tensor(value)) for one, value in batch)


class Tagger(Model):
    def read(self, name, xs):
        h, c = self[f"{name}.first_h"], self[f"{name}.first_c"]
        outputs = []
        for x in xs:
            h, c = lstm(torch.cat([x, h]) @ self[f"{name}.gates.kernel"] + self[f"{name}.gates.bias"], c)
            outputs.append(h)
        return outputs

    def word(self, word, characters):
        xs = self.embed(torch.tensor(characters), "embed_character.embedding")
        ends = self.read("spelling.forward", xs)[-1], self.read("spelling.backward", xs.flip(0))[-1]
        return torch.cat([self.embed(torch.tensor(word), "embed.embedding"), *ends])

    def loss(self, batch):
        total = torch.zeros(())
        for words, tags in batch:
            xs = [self.word(*word) for word in words]
            left = torch.stack(self.read("context.forward", xs))
            right = torch.stack(self.read("context.backward", xs[::-1])[::-1])
            scores = torch.cat([left, right], dim=-1) @ self["out.kernel"] + self["out.bias"]
            total = total + F.cross_entropy(scores, torch.tensor(tags), reduction="sum")
        return total


MODELS = {"SICK": Sick, "SST": Sst, "ListOps": ListOps, "tagger": Tagger}


def make(task: Task) -> Runner:
    model = MODELS[task.workload](task.read_weights())
    return Runner(task.read_samples(), model.run)


serve(make, "torch")
