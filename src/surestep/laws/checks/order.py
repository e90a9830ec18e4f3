"""An epoch has each sample once, in an order that the seed and the epoch decide."""

from collections.abc import Callable
from typing import Any

import torch

from surestep.engine.data.batch_loader import make_loader
from surestep.engine.data.samplers.mixtures import MixtureOrder
from surestep.engine.data.samplers.weights import Weighted
from surestep.laws.check import Result, fail, hold, leave_out
from surestep.laws.processes import Call
from surestep.laws.program import Program
from surestep.laws.runner import Runner, get_value
from surestep.trainer.incidents import epoch_index
from surestep.trainer.planning import PreparedTask, plan_task

LAW, NAME = "check", "order"
_FEW = 5  # samples, of which two random orders may well be equal


def check(runner: Runner) -> Result:
    """Compare the orders of two epochs, of a second process and of another seed."""
    facts = runner.facts
    if facts.is_stream:
        return leave_out("The stream decides its order.")
    if facts.has_no_data:
        return leave_out("The step of the Task makes its own data.")
    arguments = (runner.program, facts.options)
    calls = [Call(read_orders, runner.make_folder(), arguments) for _ in range(2)]
    first, second = (get_value(outcome, "an order") for outcome in runner.call(*calls))
    problem = find_problem(first, second)
    return fail(problem) if problem else hold("two epochs and two seeds, in full")


def read_orders(program: Program, options: dict[str, Any]) -> dict[str, Any]:
    """Return what `list_orders` lists for a program."""
    config = program.config.replace_options({**options, "limit_train_batches": None})
    return list_orders(lambda: plan_task(program.build(), config))


def list_orders(plan: Callable[[], PreparedTask]) -> dict[str, Any]:
    """Return the orders of the first two epochs, and of the first one with another seed.

    Args:
        plan: makes the task from scratch, and plans its run.
    """
    orders: list[Any] = []  # not tensors, whose memory torch would share
    for seed_after, epochs in ((0, (0, 1)), (1, (0,))):
        planned = plan()
        seeded = planned.plan.replace(seed=planned.plan.seed + seed_after)
        task, loss = planned.task, planned.loss
        loader = make_loader(task.train, "train", task=task, loss=loss, plan=seeded, training=True)
        orders += [torch.as_tensor(epoch_index(loader, epoch)).numpy() for epoch in epochs]
        loader.close()
    drawn = isinstance(loader.order, Weighted | MixtureOrder)
    return {"orders": orders, "is_drawn": drawn, "is_shuffled": seeded.data_shuffle}


def find_problem(first: dict[str, Any], second: dict[str, Any]) -> str:
    """Return what is wrong with the orders of a program; "" if nothing is.

    Args:
        first: what `read_orders` returned in a process.
        second: what it returned in another one.
    """
    names = ("epoch 1", "epoch 2", "epoch 1 with another seed")
    orders = dict(zip(names, map(torch.as_tensor, first["orders"]), strict=True))
    for (name, order), other in zip(orders.items(), second["orders"], strict=True):
        again = torch.as_tensor(other)
        if not torch.equal(order, again):
            return f"The order of {name} is different in a second process"
    if first["is_drawn"]:  # a sample may come twice
        return ""
    for name, order in orders.items():
        counts = torch.bincount(order)
        if int(counts.max()) > 1:
            return f"Sample {int(counts.argmax())} is in {name} {int(counts.max())} times"
    one, *others = orders.values()
    if not all(torch.equal(one.sort().values, other.sort().values) for other in others):
        return "Epoch 1 has other samples than epoch 2, or than epoch 1 with another seed"
    is_long = first["is_shuffled"] and len(one) > _FEW
    if is_long and any(torch.equal(one, other) for other in others):
        return "The order is the same in epoch 1 and 2, or with another seed"
    return ""
