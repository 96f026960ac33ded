"""DGL: the trees of a minibatch are one graph, run level by level with `prop_nodes`, as in DGL's own Tree-LSTM.

The graph of a tree is prepared before; putting those of a minibatch together is counted.
"""

import dgl
import torch
from torch.nn import functional as F
from torch_models import Model, divergence, output
from worker import Runner, Task, Unsupported, serve


def graph_of(tokens, edges):
    """A graph with edges from children to parents; the root is node 0."""
    children, parents = zip(*edges, strict=True) if edges else ((), ())
    ends = torch.tensor(children, dtype=torch.int64), torch.tensor(parents, dtype=torch.int64)
    graph = dgl.graph(ends, num_nodes=len(tokens))
    graph.ndata["token"] = torch.tensor(tokens)
    return graph


class Sick(Model):
    def prepare(self, sample):
        left, right, target = sample
        return self.graph(left), self.graph(right), torch.tensor(target)

    def graph(self, tree):
        tokens, edges = [], []

        def add(node):
            number = len(tokens)
            tokens.append(node[0])
            edges.extend([(add(child), number) for child in node[1]])
            return number

        add(tree)
        return graph_of(tokens, edges)

    def message(self, edges):
        forget = torch.sigmoid(edges.dst["forget"] + edges.src["h"] @ self["u_f"])
        return {"state": torch.cat([edges.src["h"], forget * edges.src["c"]], dim=-1)}

    def apply(self, nodes):
        h_sum, kept = nodes.data["sums"].chunk(2, dim=-1)
        h, c = output(*torch.addmm(nodes.data["iou"], h_sum, self["u_iou"]).chunk(3, dim=-1), kept)
        return {"h": h, "c": c}

    def loss(self, batch):
        graph = dgl.batch([pair[0] for pair in batch] + [pair[1] for pair in batch])
        x = self.embed(graph.ndata["token"])
        hidden = len(self["b_f"])
        graph.ndata["iou"] = torch.addmm(self["b_iou"], x, self["w_iou"])
        graph.ndata["forget"] = torch.addmm(self["b_f"], x, self["w_f"])
        for name, size in (("h", hidden), ("c", hidden), ("sums", 2 * hidden)):
            graph.ndata[name] = torch.zeros(graph.num_nodes(), size)
        dgl.prop_nodes_topo(graph, self.message, dgl.function.sum("state", "sums"), apply_node_func=self.apply)
        sizes = graph.batch_num_nodes()
        roots = graph.ndata["h"][torch.cumsum(sizes, 0) - sizes]
        return divergence(self, *roots.split(len(batch)), torch.stack([pair[2] for pair in batch]))


class Sst(Model):
    def prepare(self, sample):
        """Edges of a node are in the order of its children, so that a mailbox has the left child first."""
        tree, labels = sample
        tokens, edges, by_number = [], [], []
        labels = iter(labels)

        def add(node):
            number = len(tokens)
            tokens.append(-1 if isinstance(node, list) else node)
            by_number.append(None)
            below = [add(child) for child in node] if isinstance(node, list) else []
            edges.extend((child, number) for child in below)
            by_number[number] = next(labels)
            return number

        add(tree)
        graph = graph_of(tokens, edges)
        graph.ndata["label"] = torch.tensor(by_number)
        return graph

    def reduce(self, nodes):
        left_h, right_h = nodes.mailbox["h"].unbind(1)
        left_c, right_c = nodes.mailbox["c"].unbind(1)
        both = torch.cat([left_h, right_h], dim=-1)
        i, fl, fr, o, u = torch.addmm(self["bias"], both, self.weights).chunk(5, dim=-1)
        h, c = output(i, o, u, torch.sigmoid(fl) * left_c + torch.sigmoid(fr) * right_c)
        return {"h": h, "c": c}

    def message(self, edges):
        return {"h": edges.src["h"], "c": edges.src["c"]}

    def loss(self, batch):
        graph = dgl.batch(batch)
        tokens = graph.ndata["token"]
        leaves = torch.nonzero(tokens >= 0)[:, 0]
        self.weights = torch.cat([self["left"], self["right"]])
        states = output(*(self.embed(tokens[leaves]) @ self["leaf"]).chunk(3, dim=-1))
        for name, values in zip("hc", states, strict=True):
            graph.ndata[name] = torch.zeros(len(tokens), values.shape[1]).index_copy(0, leaves, values)
        dgl.prop_nodes(graph, dgl.topological_nodes_generator(graph)[1:], self.message, self.reduce, None)
        return F.cross_entropy(graph.ndata["h"] @ self["out"], graph.ndata["label"], reduction="sum")


MODELS = {"SICK": Sick, "SST": Sst}


def make(task: Task) -> Runner:
    if task.workload not in MODELS:
        raise Unsupported(f"there is no {task.workload} in DGL")
    model = MODELS[task.workload](task.read_weights())
    return Runner([model.prepare(sample) for sample in task.read_samples()], model.run)


serve(make, "torch", "dgl")
