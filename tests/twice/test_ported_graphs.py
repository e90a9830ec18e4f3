"""Graphs that a collate function joins: their nodes are rows of one tensor, as in PyG."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import surestep
from tests.twice.compare import assert_same, plain_config, prepare, weights


@dataclass
class Graph:
    """A graph, or several that are joined."""

    nodes: Tensor
    edges: Tensor
    graph: Tensor  # of each node
    count: int


def make_graphs(count: int, seed: int) -> list[dict[str, Any]]:
    """Return graphs of 2 to 6 nodes, with a class of each graph and of each node."""
    g = torch.Generator().manual_seed(seed)
    found = []
    for i in range(count):
        n = 2 + (3 * i) % 5
        nodes = torch.randn(n, 3, generator=g, dtype=torch.float64)
        edges = torch.randint(0, n, (2, 2 * n), generator=g)
        kinds = torch.randint(0, 3, (n,), generator=g)
        found.append({"nodes": nodes, "edges": edges, "kinds": kinds, "y": int(nodes.sum() > 0)})
    return found


def join(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Join graphs into one whose parts are not connected."""
    sizes = torch.tensor([len(sample["nodes"]) for sample in samples])
    starts = torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)])
    edges = torch.cat([s["edges"] + at for s, at in zip(samples, starts.tolist(), strict=False)], 1)
    nodes = torch.cat([sample["nodes"] for sample in samples])
    graph = torch.repeat_interleave(torch.arange(len(samples)), sizes)
    return {
        "graph": Graph(nodes, edges, graph, len(samples)),
        "kinds": torch.cat([sample["kinds"] for sample in samples]),
        "y": torch.tensor([sample["y"] for sample in samples]),
        "sizes": sizes,
    }


TRAIN, VAL = make_graphs(17, 1), make_graphs(11, 2)


class Net(nn.Module):
    """One message passing, then a class of each graph and of each node."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.message, self.update = nn.Linear(3, 5), nn.Linear(8, 7)
        self.of_graph, self.of_node = nn.Linear(7, 2), nn.Linear(7, 3)
        self.double()

    def forward(self, graph: Graph) -> dict[str, Tensor]:
        source, target = graph.edges
        sent = self.message(graph.nodes)[source].tanh()
        received = graph.nodes.new_zeros(len(graph.nodes), 5).index_add(0, target, sent)
        hidden = self.update(torch.cat([graph.nodes, received], 1)).tanh()
        pooled = hidden.new_zeros(graph.count, 7).index_add(0, graph.graph, hidden)
        return {"y": self.of_graph(pooled), "kinds": self.of_node(hidden)}


def per_graph(outputs: dict[str, Tensor], targets: dict[str, Tensor]) -> Tensor:
    """Return the mean over graphs of the mean loss of their nodes, and of their own loss."""
    losses = F.cross_entropy(outputs["kinds"], targets["kinds"], reduction="none")
    graph = torch.repeat_interleave(torch.arange(len(targets["sizes"])), targets["sizes"])
    sums = losses.new_zeros(len(targets["sizes"])).index_add(0, graph, losses)
    return (sums / targets["sizes"]).mean() + F.cross_entropy(outputs["y"], targets["y"])


def inputs_of(batch: dict[str, Any]) -> tuple[Graph, dict[str, Tensor]]:
    """Return a joined graph, and targets of which the first has a row for each node."""
    return batch["graph"], {name: batch[name] for name in ("kinds", "y", "sizes")}


def right(outputs: dict[str, Tensor], targets: dict[str, Tensor]) -> Tensor:
    """Return the share of graphs whose class is right."""
    return (outputs["y"].argmax(1) == targets["y"]).double().mean()


def run_by_hand(loss_of: Any) -> tuple[list[float], list[list[float]], nn.Module]:
    """Return the losses, the evaluations and the network of a loop by hand."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses, validated = [], []
    for _ in range(2):
        for first in range(0, 17, 5):
            graph, targets = inputs_of(join(TRAIN[first : first + 5]))
            optimizer.zero_grad()
            loss = loss_of(net(graph), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        graph, targets = inputs_of(join(VAL))
        with torch.no_grad():
            outputs = net(graph)
        validated.append([loss_of(outputs, targets).item(), right(outputs, targets).item()])
    return losses, validated, net


def run_ours(task: surestep.Task) -> tuple[list[float], list[list[float]]]:
    """Return the losses and the evaluations of surestep, with uneven micro-batches."""
    config = plain_config(epochs=2, batch_size=5, micro_batch_size=2, validation={"batch_size": 4})
    session = prepare(task, config)
    losses, validated = [], []
    for result in session.steps():
        losses.append(float(result.loss))
        if result.step % 4 == 0:
            metrics = session.evaluate()
            validated.append([metrics["val/loss"], metrics["val/right"]])
    return losses, validated


def test_mean_over_graphs_whose_first_target_has_a_row_for_each_node() -> None:
    losses, validated, net = run_by_hand(per_graph)

    ours_net = Net()
    task = surestep.Task(
        ours_net,
        per_graph,
        train=TRAIN,
        val=VAL,
        collate_fn=join,
        inputs=inputs_of,
        metrics={"right": right},
    )
    ours, evaluated = run_ours(task)

    assert_same([losses, validated, weights(net)], [ours, evaluated, weights(ours_net)])


def test_losses_over_nodes_and_over_graphs_have_their_own_means() -> None:
    def both(outputs: dict[str, Tensor], targets: dict[str, Tensor]) -> Tensor:
        of_nodes = F.cross_entropy(outputs["kinds"], targets["kinds"])
        return of_nodes + 0.5 * F.cross_entropy(outputs["y"], targets["y"])

    losses, validated, net = run_by_hand(both)

    ours_net = Net()
    task = surestep.Task(
        ours_net,
        {
            "kinds": nn.CrossEntropyLoss(),
            "y": lambda outputs, y: F.cross_entropy(outputs, y),
        },
        loss_weights={"y": 0.5},
        train=TRAIN,
        val=VAL,
        collate_fn=join,
        inputs=inputs_of,
        metrics={"right": right},
    )
    ours, evaluated = run_ours(task)

    assert_same([losses, validated, weights(net)], [ours, evaluated, weights(ours_net)])


@pytest.mark.parametrize("items", ["tokens", lambda batch: len(batch["kinds"])])
def test_mean_over_nodes_alone_weighs_each_node_equally(items: Any) -> None:
    def of_nodes(outputs: dict[str, Tensor], targets: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(outputs["kinds"], targets["kinds"])

    losses, validated, net = run_by_hand(of_nodes)

    ours_net = Net()
    task = surestep.Task(
        ours_net,
        lambda outputs, kinds: F.cross_entropy(outputs["kinds"], kinds),
        train=TRAIN,
        val=VAL,
        collate_fn=join,
        inputs=lambda batch: (batch["graph"], batch["kinds"]),
        items=items,
    )
    config = plain_config(epochs=2, batch_size=5, micro_batch_size=2, validation={"batch_size": 4})
    session = prepare(task, config)
    ours, evaluated = [], []
    for result in session.steps():
        ours.append(float(result.loss))
        if result.step % 4 == 0:
            evaluated.append(session.evaluate()["val/loss"])

    assert_same([losses, weights(net)], [ours, weights(ours_net)])
    assert_same([loss for loss, _ in validated], evaluated)


def test_mean_over_nodes_that_is_declared_over_graphs_is_rejected() -> None:
    task = surestep.Task(
        Net(),
        lambda outputs, kinds: F.cross_entropy(outputs["kinds"], kinds),
        train=TRAIN,
        collate_fn=join,
        inputs=lambda batch: (batch["graph"], batch["kinds"]),
    )
    with pytest.raises(surestep.SurestepError, match=r"not a mean over its items.*'tokens'"):
        prepare(task, plain_config(epochs=1, batch_size=5))


def test_mean_over_graphs_that_is_declared_over_nodes_is_rejected() -> None:
    task = surestep.Task(
        Net(),
        per_graph,
        train=TRAIN,
        collate_fn=join,
        inputs=inputs_of,
        items=lambda batch: len(batch["kinds"]),
    )
    with pytest.raises(surestep.SurestepError, match="a mean over samples, the default"):
        prepare(task, plain_config(epochs=1, batch_size=5))


def test_manual_step_on_joined_graphs_weighs_each_graph_equally() -> None:
    losses, _, net = run_by_hand(per_graph)

    def step(manual_step: surestep.ManualStep) -> None:
        for micro in manual_step.micro_batches():
            graph, targets = inputs_of(dict(micro.kwargs))
            manual_step.backward(per_graph(manual_step.model(graph), targets), micro)
        manual_step.step("model")

    ours_net = Net()
    task = surestep.Task(ours_net, train=TRAIN, collate_fn=join, step=step)
    session = prepare(task, plain_config(epochs=2, batch_size=5, micro_batch_size=2))
    ours = [float(result.loss) for result in session.steps()]

    assert_same([losses, weights(net)], [ours, weights(ours_net)])
