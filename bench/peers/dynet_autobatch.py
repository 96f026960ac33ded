"""DyNet with automatic batching. It runs on one thread.

    python dynet_autobatch.py --dynet-autobatch 1|2 [--dynet-mem N] [words-once]

The options are DyNet's own: batching 1 is by agenda, 2 by depth; memory that is there from the beginning need not grow.
A minibatch is one graph of all its samples, made node by node, as DyNet's users write it. Gates of a cell are one
product, and what does not depend on a child is computed once. With words-once, trees project each distinct word of a
minibatch once, which DyNet does not find by itself.
"""

import sys

import dynet as dy
import numpy as np
from worker import LEARNING_RATE, Runner, Task, serve

WORDS_ONCE = "words-once" in sys.argv[1:]


class Model:
    """Parameters by name; matrices are multiplied from the left."""

    def __init__(self, weights):
        self.collection = dy.ParameterCollection()
        self.trainer = dy.SimpleSGDTrainer(self.collection, LEARNING_RATE)
        self.trainer.set_clip_threshold(0)
        self.parameters = {name: self.add(name, array) for name, array in weights.items()}

    def add(self, name, array):
        if name.startswith("embed"):
            return self.collection.add_lookup_parameters(array.shape, init=array)
        return self.collection.add_parameters(array.T.shape, init=np.ascontiguousarray(array.T))

    def __getitem__(self, name):
        return self.parameters[name]

    def begin(self):
        """A new graph was begun."""
        self.words = {}

    def once(self, token):
        """What nodes need of a word, made by `project`."""
        if token not in self.words:
            self.words[token] = self.project(token)
        return self.words[token]

    def losses(self, sample):
        """What the loss of a sample is the sum of."""
        raise NotImplementedError

    def run(self, batches, training):
        results = []
        for batch in batches:
            dy.renew_cg()
            self.begin()
            loss = dy.esum([one for sample in batch for one in self.losses(sample)]) * (1 / len(batch))
            results.append(loss.value())
            if training:
                loss.backward()
                self.trainer.update()
        return results


def split(x, parts):
    size = x.dim()[0][0] // parts
    return [dy.pickrange(x, i * size, (i + 1) * size) for i in range(parts)]


def output(i, o, u, kept=None):
    c = dy.cmult(dy.logistic(i), dy.tanh(u))
    if kept is not None:
        c = c + kept
    return dy.cmult(dy.logistic(o), dy.tanh(c)), c


class Sick(Model):
    def node(self, tree):
        token, below = tree
        children = [self.node(child) for child in below]
        x = dy.lookup(self["embed"], token)
        if not children:
            return output(*split(dy.affine_transform([self["b_iou"], self["w_iou"], x]), 3))
        h = dy.esum([h for h, _ in children])
        iou = dy.affine_transform([self["b_iou"], self["w_iou"], x, self["u_iou"], h])
        forget = dy.affine_transform([self["b_f"], self["w_f"], x])
        return output(*split(iou, 3), self.kept(forget, children))

    def kept(self, forget, children):
        return dy.esum([dy.cmult(dy.logistic(forget + self["u_f"] * h), c) for h, c in children])

    def losses(self, sample):
        left, right, target = sample
        (left, _), (right, _) = self.node(left), self.node(right)
        product, distance = dy.cmult(left, right), dy.abs(left - right)
        parts = [self["b_similarity"], self["product"], product, self["distance"], distance]
        scores = dy.affine_transform([self["b_out"], self["out"], dy.logistic(dy.affine_transform(parts))])
        yield dy.scalarInput(sum(p * np.log(p) for p in target if p))
        yield -dy.dot_product(dy.inputVector(target), dy.log_softmax(scores))


class SickWordsOnce(Sick):
    def project(self, token):
        x = dy.lookup(self["embed"], token)
        return [dy.affine_transform([self[f"b_{gate}"], self[f"w_{gate}"], x]) for gate in ("iou", "f")]

    def node(self, tree):
        token, below = tree
        children = [self.node(child) for child in below]
        iou, forget = self.once(token)
        if not children:
            return output(*split(iou, 3))
        h = dy.esum([h for h, _ in children])
        return output(*split(iou + self["u_iou"] * h, 3), self.kept(forget, children))


class Sst(Model):
    def project(self, token):
        return output(*split(self["leaf"] * dy.lookup(self["embed"], token), 3))

    def states(self, tree):
        if not isinstance(tree, list):
            return [self.once(tree) if WORDS_ONCE else self.project(tree)]
        left, right = map(self.states, tree)
        (left_h, left_c), (right_h, right_c) = left[-1], right[-1]
        gates = dy.affine_transform([self["bias"], self["left"], left_h, self["right"], right_h])
        i, fl, fr, o, u = split(gates, 5)
        kept = dy.cmult(dy.logistic(fl), left_c) + dy.cmult(dy.logistic(fr), right_c)
        return [*left, *right, output(i, o, u, kept)]

    def losses(self, sample):
        tree, labels = sample
        for (h, _), label in zip(self.states(tree), labels, strict=True):
            yield dy.pickneglogsoftmax(self["out"] * h, label)


class Lstm:
    """DyNet's own cell: gates in the order i, f, o, u, with one added to f."""

    def __init__(self, model, name):
        self.weights = [model[f"{name}{part}"] for part in ("gates.inputs", "gates.states", "gates.bias")]

    def step(self, state, x):
        h, c = state
        gates = dy.vanilla_lstm_gates(x, h, *self.weights)
        c = dy.vanilla_lstm_c(c, gates)
        return dy.vanilla_lstm_h(c, gates), c


def cut_kernel(weights, name, inputs):
    """The weights with a kernel as two, of inputs (a slice of its rows) and of states (the other rows)."""
    kernel = weights.pop(f"{name}gates.kernel")
    rest = np.delete(np.arange(len(kernel)), np.arange(len(kernel))[inputs])
    weights |= {f"{name}gates.inputs": kernel[inputs], f"{name}gates.states": kernel[rest]}


class ListOps(Model):
    def __init__(self, weights):
        self.hidden = len(weights["out.kernel"])
        cut_kernel(weights, "", slice(self.hidden, None))
        # The digits' embeddings are also a matrix, which a lookup parameter cannot be.
        weights["symbols"] = weights.pop("embed.embedding")
        super().__init__(weights)
        self.lstm = Lstm(self, "")
        self.one_hot = np.eye(len(weights["symbols"]))

    def begin(self):
        self.digits = dy.select_cols(self["symbols"], range(10))

    def symbol(self, token):
        return self["symbols"] * dy.inputVector(self.one_hot[token])

    def scores(self, h):
        return dy.affine_transform([self["out.bias"], self["out.kernel"], h])

    def encode(self, expression):
        operator, *arguments = expression
        state = self.symbol(operator), dy.zeros(self.hidden)
        for argument in arguments:
            nested = isinstance(argument, list)
            x = self.digits * dy.softmax(self.scores(self.encode(argument))) if nested else self.symbol(argument)
            state = self.lstm.step(state, x)
        return state[0]

    def losses(self, sample):
        expression, value = sample
        yield dy.pickneglogsoftmax(self.scores(self.encode(expression)), value)


class Tagger(Model):
    def __init__(self, weights):
        names = [f"{layer}.{way}." for layer in ("spelling", "context") for way in ("forward", "backward")]
        for name in names:
            states = len(weights[f"{name}first_h"])
            cut_kernel(weights, name, slice(0, -states))
        super().__init__(weights)
        self.lstms = {name: Lstm(self, name) for name in names}

    def read(self, name, xs):
        state = self[f"{name}first_h"], self[f"{name}first_c"]
        outputs = []
        for x in xs:
            state = self.lstms[name].step(state, x)
            outputs.append(state[0])
        return outputs

    def word(self, word, characters):
        xs = [dy.lookup(self["embed_character.embedding"], character) for character in characters]
        ends = self.read("spelling.forward.", xs)[-1], self.read("spelling.backward.", xs[::-1])[-1]
        return dy.concatenate([dy.lookup(self["embed.embedding"], word), *ends])

    def losses(self, sample):
        words, tags = sample
        xs = [self.word(*word) for word in words]
        forward, backward = self.read("context.forward.", xs), self.read("context.backward.", xs[::-1])
        for left, right, tag in zip(forward, reversed(backward), tags, strict=True):
            both = dy.concatenate([left, right])
            yield dy.pickneglogsoftmax(dy.affine_transform([self["out.bias"], self["out.kernel"], both]), tag)


class Molecules(Model):
    def __init__(self, weights):
        weights["embed.reference"] = weights.pop("reference.embedding")
        self.rounds = sum(name.endswith("sender.kernel") for name in weights)
        self.radial, self.hidden = weights["pair_filter.kernel"].shape
        super().__init__(weights)
        self.centres = np.linspace(0.6, 3.0, self.radial)

    def linear(self, name, x):
        return dy.affine_transform([self[f"{name}.bias"], self[f"{name}.kernel"], x])

    def near(self, here, there):
        distance = np.linalg.norm(np.subtract(here, there))
        return dy.inputVector(np.exp(-(((distance - self.centres) * self.radial / 2.4) ** 2)))

    def energy(self, species, positions, bonds):
        states = [dy.lookup(self["embed.embedding"], one) for one in species]
        pairs = [(i, j) for j in range(len(states)) for i in range(j)]
        near = {(i, j): self.near(positions[i], positions[j]) for i, j in pairs}
        for number in range(self.rounds):
            name = f"interactions.{number}."
            received = [[dy.zeros(self.hidden)] for _ in states]
            for i, j in bonds:
                filters = self.linear(f"{name}filter", near[i, j])
                received[i].append(dy.cmult(self[f"{name}sender.kernel"] * states[j], filters))
                received[j].append(dy.cmult(self[f"{name}sender.kernel"] * states[i], filters))
            both = [dy.concatenate([h, dy.esum(some)]) for h, some in zip(states, received, strict=True)]
            inner = [dy.silu(self.linear(f"{name}receiver", one)) for one in both]
            states = [h + self.linear(f"{name}out", one) for h, one in zip(states, inner, strict=True)]
        for one, h in zip(species, states, strict=True):
            yield dy.lookup(self["embed.reference"], one) + self.linear("readout", dy.silu(self.linear("inner", h)))
        states = [self.linear("pair_state", h) for h in states]
        for i, j in pairs:
            product = dy.cmult(dy.cmult(states[i], states[j]), self.linear("pair_filter", near[i, j]))
            yield self["pair_out.kernel"] * product

    def losses(self, sample):
        *molecule, energy = sample
        yield dy.square(dy.esum(list(self.energy(*molecule))) - dy.inputVector([energy]))


MODELS = {
    "SICK": SickWordsOnce if WORDS_ONCE else Sick,
    "SST": Sst,
    "ListOps": ListOps,
    "tagger": Tagger,
    "molecules": Molecules,
}


def make(task: Task) -> Runner:
    model = MODELS[task.workload](task.read_weights())
    return Runner(task.read_samples(), model.run)


serve(make, "dyNET38", "numpy")
