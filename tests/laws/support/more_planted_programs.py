"""More programs with one fault each; what is expected was written down before they ran."""

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import get_worker_info

import surestep
from tests.laws.support.planted_programs import COUNTS, Net, Planted, Rows, make

CACHE: dict[int, Tensor] = {}
SYSTEM = random.SystemRandom()


class Hashed(Rows):
    """Scales its rows by the hash of a text, which each interpreter salts."""

    def __init__(self) -> None:
        super().__init__()
        self.x = self.x * (1 + hash("rows") % 1000 / 1000)


def make_hashed() -> surestep.Task:
    """Make a task that a new interpreter can make too."""
    return surestep.Task(Net, loss="multiclass", train=Hashed())


class Clocked(Rows):
    """Draws its noise from a generator that the clock seeds."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(time.time_ns() % 2**31)
        self.x = self.x + torch.randn(self.x.shape, generator=generator)


class Racing(Net):
    """Adds up in the order in which threads end."""

    def between(self, hidden: Tensor) -> Tensor:
        """Add the numbers of four threads, each scaled by when it ended."""
        ended: list[int] = []

        def work(number: int) -> None:
            time.sleep(SYSTEM.random() / 500)
            ended.append(number)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        return hidden + sum(rank * number for rank, number in enumerate(ended)) / 100


class FirstTime(Rows):
    """Returns another row when it is read for the second time."""

    def read(self, index: int) -> Tensor:
        """Keep the row, and scale it from then on."""
        if index in CACHE:
            return CACHE[index] * 1.5
        CACHE[index] = self.x[index]
        return self.x[index]


class ByWorker(Rows):
    """Adds the number of its worker."""

    def read(self, index: int) -> Tensor:
        """Return the row, and more of it in a later worker."""
        info = get_worker_info()
        return self.x[index] + (0 if info is None else info.id)


class DrawnWeights(Net):
    """Draws its first weights from the system."""

    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            self.last.bias.fill_(SYSTEM.random())


class SoftmaxOfBatch(Net):
    """Takes a softmax over the samples."""

    def between(self, hidden: Tensor) -> Tensor:
        """Weigh the samples against each other."""
        return hidden * torch.softmax(hidden, 0)


class Standardized(Net):
    """Divides by the deviation of its batch."""

    def between(self, hidden: Tensor) -> Tensor:
        """Divide by the deviation of all samples."""
        return hidden / (hidden.std(0, unbiased=False) + 0.1)


class BySize(Net):
    """Scales by the number of samples."""

    def between(self, hidden: Tensor) -> Tensor:
        """Scale by the size of the batch."""
        return hidden * len(hidden) / 8


class OnHost(Net):
    """Computes on the host with numpy."""

    def between(self, hidden: Tensor) -> Tensor:
        """Scale by a number of numpy."""
        return hidden * float(hidden.detach().cpu().numpy().mean() > 9)


class AsksForAny(Net):
    """Asks in Python whether a value is large."""

    def between(self, hidden: Tensor) -> Tensor:
        """Clamp if any value is large."""
        return hidden.clamp(max=0.5) if (hidden > 2).any() else hidden


class ByMask(Net):
    """Selects values by a mask."""

    def between(self, hidden: Tensor) -> Tensor:
        """Add the mean of the positive values."""
        return hidden + hidden[hidden > 0].sum() * 0.0


class HookCounts(Net):
    """Has a hook that scales gradients by its calls."""

    def between(self, hidden: Tensor) -> Tensor:
        """Register the hook."""

        def scale(gradient: Tensor) -> Tensor:
            COUNTS["forward"] += 1
            return gradient * (1 + COUNTS["forward"] / 10)

        if hidden.requires_grad:
            hidden.register_hook(scale)
        return hidden


class HookDraws(Net):
    """Has a hook that scales gradients by a number of the system."""

    def between(self, hidden: Tensor) -> Tensor:
        """Register the hook."""
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: gradient * (1 + SYSTEM.random()))
        return hidden


class CountsInEvaluation(Net):
    """Scales its outputs by its evaluations."""

    def between(self, hidden: Tensor) -> Tensor:
        """Scale in eval mode."""
        if self.training:
            return hidden
        COUNTS["draws"] += 1
        return hidden * (1 + COUNTS["draws"])


class WithoutAutocast(nn.Module):
    """Switches autocast off."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 4) to (batch, 3), in fp32."""
        with torch.autocast("cpu", enabled=False):
            return self.layer(x.float())


class Temperature(Net):
    """Scales by a schedule that counts calls."""

    def between(self, hidden: Tensor) -> Tensor:
        """Scale by less in each training forward."""
        if self.training:
            COUNTS["forward"] += 1
        return hidden * 0.9 ** COUNTS["forward"]


class CountingSgd(torch.optim.SGD):
    """Steps further with each step of the process."""

    def step(self, closure: Any = None) -> Any:
        """Scale the gradients by the number of calls."""
        COUNTS["draws"] += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(1 + COUNTS["draws"] / 10)
        return super().step(closure)


class DrawingSgd(torch.optim.SGD):
    """Adds a number of the system to each parameter."""

    def step(self, closure: Any = None) -> Any:
        """Add noise, and step."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.add_(SYSTEM.random() / 100)
        return super().step(closure)


class Unreset:
    """A metric that keeps what it has seen of earlier evaluations."""

    higher_is_better = True

    def __init__(self) -> None:
        self.right = self.seen = 0

    def reset(self) -> None:
        """Forget nothing."""

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Count."""
        self.right += int((outputs.argmax(1) == targets).sum()) + 1
        self.seen += len(targets)

    def compute(self) -> float:
        """Return a share that depends on all evaluations."""
        return self.right / self.seen**2


def count_in_metric(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the accuracy, and count in the global that the forward reads."""
    COUNTS["forward"] += 1
    return (outputs.argmax(1) == targets).float().mean()


class ReadsCount(Net):
    """Scales by a count that a metric advances."""

    def between(self, hidden: Tensor) -> Tensor:
        """Scale by the count."""
        return hidden * (1 + COUNTS["forward"] / 100)


def make_loss_with_list() -> Any:
    """Return a loss that remembers its calls in a closure."""
    calls: list[int] = []

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        calls.append(1)
        return nn.functional.cross_entropy(outputs, targets) * (1 + 1 / len(calls))

    return loss


def add_size(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return a mean with a term that depends on the size of the batch."""
    return nn.functional.cross_entropy(outputs, targets) * (1 + 1 / len(outputs))


def print_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean, and print it."""
    loss = nn.functional.cross_entropy(outputs, targets)
    print(float(loss.detach()))
    return loss


def center(samples: list[Any]) -> tuple[Tensor, Tensor]:
    """Return a batch without its mean."""
    x, y = torch.stack([one for one, _ in samples]), torch.stack([one for _, one in samples])
    return x - x.mean(0), y


def ignore_seed(seed: int, epoch: int) -> list[int]:
    """Return an order that the epoch alone decides."""
    return torch.randperm(64, generator=torch.Generator().manual_seed(epoch)).tolist()


def leave_out(seed: int, epoch: int) -> list[int]:
    """Return other samples in each epoch."""
    return [(index + epoch + seed) % 64 for index in range(32)]


def draw_order(seed: int, epoch: int) -> list[int]:
    """Return an order of the system."""
    order = list(range(64))
    SYSTEM.shuffle(order)
    return order


class ShrinkAtLog(surestep.Callback):
    """Changes a weight at each log point."""

    def on_log(self, state: Any, point: Any) -> None:
        """Scale the last bias."""
        with torch.no_grad():
            state.model.last.bias.mul_(0.9)


class ShrinkAtEvaluation(surestep.Callback):
    """Changes a weight after each evaluation."""

    def on_evaluate(self, state: Any, metrics: Any) -> None:
        """Scale the last bias."""
        with torch.no_grad():
            state.model.last.bias.mul_(0.5)


class ShrinkAtSave(surestep.Callback):
    """Changes a weight after each save."""

    def on_save(self, state: Any, checkpoint: Any) -> None:
        """Scale the last bias."""
        with torch.no_grad():
            state.model.last.bias.mul_(0.5)


def list_more() -> Iterator[tuple[str, Planted]]:
    """Yield the programs by name."""
    sgd, drawing = CountingSgd, DrawingSgd
    yield "rows scaled by a hash", Planted(make_hashed, "same again", 1, "data")
    yield "noise that the clock seeds", Planted(make(data=Clocked), "same again", 1, "data")
    yield (
        "threads that race",
        Planted(make(Racing), "same again", 1, "outputs", source="Racing"),
    )
    yield (
        "an order of the system",
        Planted(make(sampler=surestep.samplers.custom(draw_order)), "order", None, ""),
    )
    yield (
        "first weights of the system",
        Planted(make(DrawnWeights), "same again", 0, "parameters", "last.bias"),
    )
    yield "a hook that draws", Planted(make(HookDraws), "same again", 1, "gradients", "first")
    yield (
        "an optimizer that draws",
        Planted(
            make(optimizer=lambda groups: drawing(groups, lr=0.1)), "same again", 1, "parameters"
        ),
    )
    yield (
        "a cache of the first epoch",
        Planted(make(data=lambda: FirstTime(32)), "resuming", 5, "data"),
    )
    yield "a loss with a list", Planted(make(loss=make_loss_with_list()), "resuming", 2, "loss")
    yield (
        "a schedule in the forward",
        Planted(make(Temperature), "resuming", 2, "outputs", source="Temperature"),
    )
    yield "a hook that counts", Planted(make(HookCounts), "resuming", 2, "gradients", "first")
    yield (
        "an optimizer that counts",
        Planted(make(optimizer=lambda groups: sgd(groups, lr=0.1)), "resuming", 2, "parameters"),
    )
    yield "rows by the worker", Planted(make(data=ByWorker), "workers", 2, "data")
    yield (
        "a callback at log points",
        Planted(make(), "watching", 1, "parameters", "last.bias", callbacks=(ShrinkAtLog(),)),
    )
    yield (
        "a callback at evaluations",
        Planted(make(), "watching", 2, "outputs", callbacks=(ShrinkAtEvaluation(),)),
    )
    yield (
        "a callback at saves",
        Planted(make(), "watching", 2, "outputs", callbacks=(ShrinkAtSave(),)),
    )
    yield (
        "a metric that counts",
        Planted(
            make(ReadsCount, metrics={"accuracy": count_in_metric}),
            *("watching", 2, "outputs"),
            source="ReadsCount",
        ),
    )
    yield "a softmax over the batch", Planted(make(SoftmaxOfBatch), "splitting", 1, "outputs")
    yield "a deviation of the batch", Planted(make(Standardized), "splitting", 1, "outputs")
    yield "the size of the batch", Planted(make(BySize), "splitting", 1, "outputs")
    yield "a loss with the size", Planted(make(loss=add_size), "splitting", 1, "loss")
    yield (
        "a collate that centers",
        Planted(make(collate_fn=center), "splitting", 1, "outputs", source="first"),
    )
    yield "a mean of the batch, on ranks", Planted(make(Standardized), "ranks", 1, "outputs")
    yield "a loss with the size, on ranks", Planted(make(loss=add_size), "ranks", 1, "loss")
    yield "numpy in the forward", Planted(make(OnHost), "no stall", None, "")
    yield "an if of a tensor", Planted(make(AsksForAny), "no stall", None, "")
    yield "an index by a mask", Planted(make(ByMask), "no stall", None, "")
    yield "a loss that is printed", Planted(make(loss=print_loss), "no stall", None, "")
    yield (
        "a sampler that ignores the seed",
        Planted(make(sampler=surestep.samplers.custom(ignore_seed)), "order", None, ""),
    )
    yield (
        "a sampler that leaves out samples",
        Planted(make(sampler=surestep.samplers.custom(leave_out)), "order", None, ""),
    )
    yield (
        "a metric that is not reset",
        Planted(make(metrics={"share": Unreset()}), "checkpoint", None, ""),
    )
    yield (
        "a count of evaluations",
        Planted(make(CountsInEvaluation), "checkpoint", None, ""),
    )
    yield (
        "autocast that is off",
        Planted(make(WithoutAutocast), "precision", None, "", options={"precision": "bf16"}),
    )


MORE = dict(list_more())
