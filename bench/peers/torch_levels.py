"""PyTorch, batched by hand.

Trees are run level by level from the leaves: nodes at equal depth from the root are one batch, so that a level reads
nothing but the one below it. Words are projected before the levels, once for each distinct word. What a
data loader would keep of a tree (its nodes by depth, as arrays) is prepared before; putting the trees of a minibatch
together is counted. Sequences are packed for `torch.lstm`.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence
from torch_models import Model, divergence, lstm, output
from worker import Runner, Task, Unsupported, serve


def joined(arrays):
    return np.concatenate(arrays) if arrays else np.zeros(0, np.int64)


# --- Pairs of dependency trees


class Flat(NamedTuple):
    """A tree's nodes, level by level from the root."""

    tokens: np.ndarray
    parents: np.ndarray  # the position of each node's parent in its level
    sizes: list[int]  # of the levels


def flatten(tree):
    level, tokens, parents, sizes = [(tree, 0)], [], [], []
    while level:
        tokens += [node[0] for node, _ in level]
        parents += [parent for _, parent in level]
        sizes.append(len(level))
        level = [(child, row) for row, (node, _) in enumerate(level) for child in node[1]]
    return Flat(np.array(tokens), np.array(parents), sizes)


class FlatPair(NamedTuple):
    left: Flat
    right: Flat
    target: list[float]


class Sick(Model):
    def prepare(self, sample):
        left, right, target = sample
        return FlatPair(flatten(left), flatten(right), target)

    def levels(self, trees):
        """For each level from the root: its tokens, and for each node the row of its parent in the level above."""
        starts = [np.cumsum([0, *tree.sizes]).tolist() for tree in trees]
        above = np.zeros(len(trees), np.int64)  # where each tree's nodes begin in the level above
        for depth in range(max(len(tree.sizes) for tree in trees)):
            here = [number for number, tree in enumerate(trees) if depth < len(tree.sizes)]
            spans = [slice(starts[number][depth], starts[number][depth + 1]) for number in here]
            tokens = joined([trees[number].tokens[span] for number, span in zip(here, spans, strict=True)])
            parents = joined([trees[n].parents[span] + above[n] for n, span in zip(here, spans, strict=True)])
            yield tokens, torch.from_numpy(parents)
            above = np.zeros(len(trees), np.int64)
            above[here] = np.cumsum([0, *(span.stop - span.start for span in spans)])[:-1]

    def loss(self, batch):
        trees = [pair.left for pair in batch] + [pair.right for pair in batch]
        levels = list(self.levels(trees))
        words, rows = np.unique(np.concatenate([tokens for tokens, _ in levels]), return_inverse=True)
        rows = torch.from_numpy(rows).split([len(tokens) for tokens, _ in levels])
        x = self.embed(torch.from_numpy(words))
        inputs = torch.addmm(self["b_iou"], x, self["w_iou"])
        forgets = torch.addmm(self["b_f"], x, self["w_f"])
        h, c = output(*inputs[rows[-1]].chunk(3, dim=-1))
        for depth in range(len(levels) - 2, -1, -1):
            parents, mine = levels[depth + 1][1], rows[depth]
            kept = torch.sigmoid(torch.addmm(forgets[mine[parents]], h, self["u_f"])) * c
            sums = torch.zeros(len(mine), 2 * h.shape[1]).index_add(0, parents, torch.cat([h, kept], dim=-1))
            h_sum, kept = sums.chunk(2, dim=-1)
            h, c = output(*torch.addmm(inputs[mine], h_sum, self["u_iou"]).chunk(3, dim=-1), kept)
        return divergence(self, h[: len(batch)], h[len(batch) :], torch.tensor([pair.target for pair in batch]))


# --- Binary trees with a class for each node


class Binary(NamedTuple):
    """A tree's nodes, level by level from the root; a level's branches come before its leaves.

    Attributes:
        children: int [branches, 2], positions in the next level: of branches, or complements of positions of leaves.
        labels: of branches.
        tokens, leaf_labels: of leaves.
        branches, leaves: how many there are in each level.
    """

    children: np.ndarray
    labels: np.ndarray
    tokens: np.ndarray
    leaf_labels: np.ndarray
    branches: list[int]
    leaves: list[int]


class Sst(Model):
    def prepare(self, sample):
        tree, labels = sample
        branches, leaves, labels = [], [], iter(labels)

        def add(node, depth):
            if depth == len(branches):
                branches.append([])
                leaves.append([])
            if not isinstance(node, list):
                leaves[depth].append((node, next(labels)))
                return ~(len(leaves[depth]) - 1)
            below = [add(child, depth + 1) for child in node]
            branches[depth].append((*below, next(labels)))
            return len(branches[depth]) - 1

        add(tree, 0)
        inner = np.array([one for level in branches for one in level], np.int64).reshape(-1, 3)
        outer = np.array([one for level in leaves for one in level], np.int64).reshape(-1, 2)
        counts = [len(level) for level in branches], [len(level) for level in leaves]
        return Binary(inner[:, :2], inner[:, 2], outer[:, 0], outer[:, 1], *counts)

    def loss(self, batch):
        hidden = len(self["left"])
        depths = max(len(tree.branches) for tree in batch)
        branches, leaves = np.zeros((2, len(batch), depths + 1), np.int64)
        for number, tree in enumerate(batch):
            branches[number, : len(tree.branches)] = tree.branches
            leaves[number, : len(tree.leaves)] = tree.leaves
        first_branch, first_leaf = (np.cumsum(one, axis=0) - one for one in (branches, leaves))  # in each level
        own_branch, own_leaf = (np.cumsum(one, axis=1) - one for one in (branches, leaves))  # in each tree

        words, rows = np.unique(np.concatenate([tree.tokens for tree in batch]), return_inverse=True)
        of_tree = np.split(rows, np.cumsum([len(tree.tokens) for tree in batch])[:-1])
        known = output(*(self.embed(torch.from_numpy(words)) @ self["leaf"]).chunk(3, dim=-1))
        known = torch.cat(known, dim=-1)
        weights = torch.cat([self["left"], self["right"]])

        states, labels = [], []
        below = known[:0]
        for depth in range(depths - 2, -1, -1):
            width = int(branches[:, depth + 1].sum())
            children, words_here = [], []
            for n in np.flatnonzero(branches[:, depth]):
                start, number = own_branch[n, depth], branches[n, depth]
                pairs = batch[n].children[start : start + number]
                shifted = np.where(
                    pairs >= 0, pairs + first_branch[n, depth + 1], width + first_leaf[n, depth + 1] + ~pairs
                )
                children.append(shifted)
                labels.append(batch[n].labels[start : start + number])
                leaf = own_leaf[n, depth + 1]
                words_here.append(of_tree[n][leaf : leaf + leaves[n, depth + 1]])
            below = torch.cat([below, known[torch.from_numpy(joined(words_here))]])
            left, right = below[torch.from_numpy(np.concatenate(children).T)]
            both = torch.cat([left[:, :hidden], right[:, :hidden]], dim=-1)
            i, fl, fr, o, u = torch.addmm(self["bias"], both, weights).chunk(5, dim=-1)
            h, c = output(i, o, u, torch.sigmoid(fl) * left[:, hidden:] + torch.sigmoid(fr) * right[:, hidden:])
            states.append(h)
            below = torch.cat([h, c], dim=-1)
        h = torch.cat([*states, known[:, :hidden][torch.from_numpy(rows)]])
        labels += [tree.leaf_labels for tree in batch]
        return F.cross_entropy(h @ self["out"], torch.from_numpy(np.concatenate(labels)), reduction="sum")


# --- Sentences of words of characters


class Tagger(Model):
    """`torch.lstm` reads packed sequences; weights are brought into its order of gates in each step."""

    def prepare(self, sample):
        words, tags = sample
        numbers = [torch.tensor(characters) for _, characters in words]
        return torch.tensor([word for word, _ in words]), numbers, torch.tensor(tags)

    def both_ways(self, name, sequences):
        """Packed sequences through a BiLSTM: outputs and last states."""
        weights, first = [], []
        for way in ("forward", "backward"):
            kernel, bias = self[f"{name}.{way}.gates.kernel"], self[f"{name}.{way}.gates.bias"]
            i, f, o, u = kernel.T.chunk(4)
            b_i, b_f, b_o, b_u = bias.chunk(4)
            inputs = kernel.shape[0] - kernel.shape[1] // 4
            both = torch.cat([i, f, u, o])
            weights += [both[:, :inputs], both[:, inputs:], torch.cat([b_i, b_f + 1, b_u, b_o]), torch.zeros_like(bias)]
            first.append((self[f"{name}.{way}.first_h"], self[f"{name}.{way}.first_c"]))
        packed = pack_sequence(sequences, enforce_sorted=False)
        number = len(sequences)
        h, c = (torch.stack(part)[:, None].expand(-1, number, -1).contiguous() for part in zip(*first, strict=True))
        data, last, _ = torch.lstm(packed.data, packed.batch_sizes, (h, c), weights, True, 1, 0.0, False, True)
        return packed._replace(data=data), last[:, packed.unsorted_indices]

    def loss(self, batch):
        words, tags = (torch.cat([one[part] for one in batch]) for part in (0, 2))
        spelled = [word for one in batch for word in one[1]]
        letters = self.embed(torch.cat(spelled), "embed_character.embedding").split([len(word) for word in spelled])
        _, (forward, backward) = self.both_ways("spelling", letters)
        xs = torch.cat([self.embed(words, "embed.embedding"), forward, backward], dim=-1)
        lengths = [len(one[0]) for one in batch]
        states, _ = self.both_ways("context", xs.split(lengths))
        padded, _ = pad_packed_sequence(states, batch_first=True)
        h = torch.cat([one[:length] for one, length in zip(padded, lengths, strict=True)])
        return F.cross_entropy(h @ self["out.kernel"] + self["out.bias"], tags, reduction="sum")


# --- Expressions


class Reads(NamedTuple):
    """What the operators of an expression read, argument by argument. A read makes a new state of its operator, which
    one later read needs: the next of the same operator, or that of the operator around it.

    Attributes:
        height: when it can be done at the earliest.
        before: the read that made the operator's state, or -1 if it is the first.
        symbol: of the operator.
        argument: a token, or the complement of the read that made the state of a nested operator.
        needed: the height of the read that needs the new state, or -1 if it is the last of all.
    """

    height: np.ndarray
    before: np.ndarray
    symbol: np.ndarray
    argument: np.ndarray
    needed: np.ndarray


class ListOps(Model):
    """Reads of equal height are one batch. States that a later height needs are carried on."""

    def prepare(self, sample):
        expression, value = sample
        reads = []

        def add(one):
            """The number of an operator's last read."""
            last, height = -1, 0
            for argument in one[1:]:
                if isinstance(argument, list):
                    nested = add(argument)
                    height, argument = max(height, reads[nested][0] + 1), ~nested
                    reads[nested][4] = height
                if last >= 0:
                    reads[last][4] = height
                reads.append([height, last, one[0], argument, -1])
                last, height = len(reads) - 1, height + 1
            return last

        add(expression)
        return Reads(*np.array(reads).T), value

    def loss(self, batch):
        counts = [len(reads.height) for reads, _ in batch]
        shift = np.repeat(np.cumsum([0, *counts])[:-1], counts)
        joined_reads = Reads(*(np.concatenate(part) for part in zip(*(reads for reads, _ in batch), strict=True)))
        height, before, symbol, argument, needed = joined_reads
        before = np.where(before < 0, -1, before + shift)
        argument = np.where(argument < 0, argument - shift, argument)
        embedding = self["embed.embedding"]
        hidden = embedding.shape[1]
        first = torch.cat([embedding, torch.zeros_like(embedding)], dim=-1)
        row_of = np.zeros(len(height), np.int64)  # in the states that are carried
        carried, states = np.zeros(0, np.int64), first[:0]
        last, values = [], np.array([value for _, value in batch])
        finished = []
        order = np.argsort(height, kind="stable")
        for now, some in enumerate(np.split(order, np.cumsum(np.bincount(height))[:-1])):
            nested = argument[some] < 0
            some = np.concatenate([some[nested], some[~nested]])
            count = int(nested.sum())
            known = torch.cat([states, first])
            own = np.where(before[some] < 0, len(states) + symbol[some], row_of[before[some]])
            h, c = known[torch.from_numpy(own)].split(hidden, dim=-1)
            x = embedding[torch.from_numpy(argument[some[count:]])]
            if count:
                inner = states[torch.from_numpy(row_of[~argument[some[:count]]]), :hidden]
                x = torch.cat([self.scores(inner).softmax(-1) @ embedding[:10], x])
            gates = torch.addmm(self["gates.bias"], torch.cat([h, x], dim=-1), self["gates.kernel"])
            new = torch.cat(lstm(gates, c), dim=-1)
            ends = np.flatnonzero(needed[some] < 0)
            last.append(new[torch.from_numpy(ends), :hidden])
            finished.append(some[ends])
            kept = np.flatnonzero(needed[carried] > now)
            states = torch.cat([new, states[torch.from_numpy(kept)]])
            carried = np.concatenate([some, carried[kept]])
            row_of[carried] = np.arange(len(carried))
        sample_of = np.repeat(np.arange(len(batch)), counts)[np.concatenate(finished)]
        return F.cross_entropy(self.scores(torch.cat(last)), torch.from_numpy(values[sample_of]), reduction="sum")

    def scores(self, h):
        return h @ self["out.kernel"] + self["out.bias"]


# --- Molecules


class Atoms(NamedTuple):
    """A molecule: its atoms, its bonds in both directions, its pairs of atoms, and the pair that each bond is."""

    species: np.ndarray
    positions: np.ndarray
    receivers: np.ndarray
    senders: np.ndarray
    pair_of: np.ndarray
    first: np.ndarray
    second: np.ndarray
    energy: float


class Molecules(Model):
    def prepare(self, sample):
        species, positions, bonds, energy = sample
        first, second = np.triu_indices(len(species), 1)
        pair_ids = {pair: row for row, pair in enumerate(zip(first.tolist(), second.tolist(), strict=True))}
        here, there = np.array(bonds, np.int64).T
        pair_of = np.array([pair_ids[tuple(bond)] for bond in bonds])
        receivers, senders = np.concatenate([here, there]), np.concatenate([there, here])
        positions = np.array(positions, np.float32)
        return Atoms(np.array(species), positions, receivers, senders, np.tile(pair_of, 2), first, second, energy)

    def linear(self, name, x):
        return torch.addmm(self[f"{name}.bias"], x, self[f"{name}.kernel"])

    def loss(self, batch):
        atoms, pairs = [len(one.species) for one in batch], [len(one.first) for one in batch]
        at_atom, at_pair = np.cumsum([0, *atoms[:-1]]), np.cumsum([0, *pairs[:-1]])

        def shifted(name, starts):
            parts = zip((getattr(one, name) for one in batch), starts, strict=True)
            return torch.from_numpy(np.concatenate([part + start for part, start in parts]))

        receivers, senders, first, second = (
            shifted(name, at_atom) for name in ("receivers", "senders", "first", "second")
        )
        pair_of, species = shifted("pair_of", at_pair), torch.from_numpy(joined([one.species for one in batch]))
        positions = torch.from_numpy(joined([one.positions for one in batch]))
        radial = self["pair_filter.kernel"].shape[0]
        centres = torch.linspace(0.6, 3.0, radial)
        distances = (positions[first] - positions[second]).norm(dim=1, keepdim=True)
        near = torch.exp(-(((distances - centres) * radial / 2.4) ** 2))
        h, bonded = self.embed(species, "embed.embedding"), near[pair_of]
        for number in range(sum(name.endswith("sender.kernel") for name in self.parameters)):
            name = f"interactions.{number}."
            filters = self.linear(f"{name}filter", bonded)
            messages = (h @ self[f"{name}sender.kernel"])[senders] * filters
            sums = torch.zeros_like(h).index_add(0, receivers, messages)
            h = h + self.linear(f"{name}out", F.silu(self.linear(f"{name}receiver", torch.cat([h, sums], dim=1))))
        of_atoms = self.embed(species, "reference.embedding") + self.linear("readout", F.silu(self.linear("inner", h)))
        states = self.linear("pair_state", h)
        products = states[first] * states[second] * self.linear("pair_filter", near)
        of_pairs = products @ self["pair_out.kernel"]
        owners = torch.from_numpy(np.repeat(np.arange(len(batch)), atoms))
        pair_owners = torch.from_numpy(np.repeat(np.arange(len(batch)), pairs))
        energies = torch.zeros(len(batch)).index_add(0, owners, of_atoms[:, 0])
        energies = energies.index_add(0, pair_owners, of_pairs[:, 0])
        return ((energies - torch.tensor([one.energy for one in batch])) ** 2).sum()


MODELS = {"SICK": Sick, "SST": Sst, "ListOps": ListOps, "tagger": Tagger, "molecules": Molecules}


def make(task: Task) -> Runner:
    if task.workload not in MODELS:
        raise Unsupported(f"there is no {task.workload} batched by hand in PyTorch")
    model = MODELS[task.workload](task.read_weights())
    return Runner([model.prepare(sample) for sample in task.read_samples()], model.run)


serve(make, "torch")
