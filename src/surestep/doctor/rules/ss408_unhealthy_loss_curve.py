"""The loss does not fall as it should: it is flat, diverges, overfits, or becomes NaN.

The curve has one of these states, and the finding names it:

- *overfitting since step N*: the validation loss rises from its best for many evaluations, while
  the training loss falls. The model learns its samples by heart;
- *flat from the start*: the training loss did not fall, measured against its own noise;
- *stuck at log(classes)*: the cross-entropy stays at that of equal probabilities. The model ignores
  its inputs;
- *diverging*: the training loss rises far above its start, or loses what it had gained;
- *NaN or infinite since step N*: no loss is finite any more.

`surestep diagnose RUN` lists the usual causes of each in the order to try, and docs/curves.md shows
the states. `surestep train` stops at the first loss that is NaN or infinite, and `surestep watch`
reports losses that end so in any script. It names the curve of scripts that take at least 100 steps
with one optimizer, on batches of one dataset from a DataLoader, and whose loss is computed by the
same functions of PyTorch in each step: a cross-entropy, or a mean of squared or absolute errors. It
sees evaluations on a DataLoader of another dataset that compute such a loss as a mean.

Ignore it if a flat or rising loss is expected, as in reinforcement learning, if the task becomes
harder during the training, or if the temperature of a contrastive loss grows.

Source: https://karpathy.github.io/2019/04/25/recipe/
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from surestep.doctor.remark import Remark
from surestep.doctor.runtime.losses import CurveWatcher
from surestep.doctor.watcher import Observation, Run

if TYPE_CHECKING:
    from surestep.doctor.case import Case

SEVERITY = "warning"
FIX = (
    "Try the usual causes in the order of docs/curves.md; `surestep diagnose RUN` lists them for a "
    "run of surestep."
)
_NOT_FINITE = (
    "an operation such as log(0) or 1/0, or a sample that is not finite. With "
    "torch.autograd.set_detect_anomaly(True), PyTorch names the operation."
)
_NAMES = ("overfitting", "flat", "stuck", "diverging")


class Watch(CurveWatcher):
    """Name the curve of a script."""

    def observe(self, run: Run) -> Iterator[Observation]:
        from surestep.doctor.curves.causes import CAUSES

        failure = self.find_failure(run)
        found = [named for named in self.name_curves(run) if named[1].name in _NAMES]
        for watched, state in [failure] if failure else found[:1]:  # others are of one training
            title = state.title[0].upper() + state.title[1:]
            first = _NOT_FINITE if state.name == "nonfinite" else CAUSES[state.name][0].text
            yield Observation(
                watched.location,
                f"{title}. {state.message} The first cause to try: {first}",
                state.since_step or 1,
                {"state": state.name, **state.evidence},
            )


def review(case: Case) -> Iterator[Remark]:
    """Name the curve of the run; that of a manual step is a sum of losses, and has no name."""
    from surestep.doctor.curves.causes import CAUSES
    from surestep.doctor.curves.name import name_curve

    curve = case.curve
    for state in () if curve is None else name_curve(curve):
        if state.name not in _NAMES:
            continue
        title = state.title[0].upper() + state.title[1:]
        run = shlex.quote(str(case.folder))
        yield Remark(
            f"{title}. {state.message}",
            {"state": state.name, "since_step": state.since_step, **state.evidence},
            f"The first cause to try: {CAUSES[state.name][0].text} The others, and what to type: "
            f"surestep diagnose {run}",
        )


def bad_random_targets() -> None:
    import torch
    from torch import nn

    import surestep

    x, y = torch.randn(256, 8), torch.randint(3, (256,))
    task = surestep.Task(
        nn.Sequential(nn.Linear(8, 128), nn.ReLU(), nn.Linear(128, 3)),
        nn.CrossEntropyLoss(),
        train=(x[:64], y[:64]),
        val=(x[64:], y[64:]),
    )
    config = surestep.Config(
        max_steps=300,
        batch_size=16,
        optim=surestep.Optim(lr=0.01),
        max_grad_norm="off",
        validation=surestep.Validation(every="20 steps"),
    )
    surestep.Trainer(task, config, run="run").fit()


def bad_tiny_rate() -> None:
    import torch

    import surestep

    x = torch.randn(128, 4)
    y = (x[:, 0] > 0).long()
    task = surestep.Task(torch.nn.Linear(4, 2), torch.nn.CrossEntropyLoss(), train=(x, y))
    optim = surestep.Optim(lr=1e-9)
    config = surestep.Config(max_steps=150, batch_size=64, optim=optim, max_grad_norm="off")
    surestep.Trainer(task, config, run="run").fit()


def bad_large_rate() -> None:
    import torch

    import surestep

    torch.manual_seed(0)
    x = torch.randn(256, 8)
    task = surestep.Task(torch.nn.Linear(8, 1), "mse", train=(x, x.sum(1, keepdim=True)))
    config = surestep.Config(
        max_steps=150,
        batch_size=256,
        optim=surestep.Optim(name="sgd", lr=0.75, momentum=0.0),
        schedule=surestep.Schedule(name="constant"),
        max_grad_norm="off",
    )
    surestep.Trainer(task, config, run="run").fit()


def good_small_rate() -> None:
    import torch

    import surestep

    x = torch.randn(256, 8)
    task = surestep.Task(torch.nn.Linear(8, 1), "mse", train=(x, x.sum(1, keepdim=True)))
    config = surestep.Config(
        max_steps=150,
        batch_size=256,
        optim=surestep.Optim(name="sgd", lr=0.05, momentum=0.0),
        max_grad_norm="off",
    )
    surestep.Trainer(task, config, run="run").fit()


def good_pattern_of_the_inputs() -> None:
    import torch
    from torch import nn

    import surestep

    x = torch.randn(512, 8)
    y = x[:, :3].argmax(1)
    task = surestep.Task(
        nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3)),
        nn.CrossEntropyLoss(),
        train=(x[:384], y[:384]),
        val=(x[384:], y[384:]),
    )
    config = surestep.Config(
        max_steps=200,
        batch_size=32,
        optim=surestep.Optim(lr=0.01),
        max_grad_norm="off",
        validation=surestep.Validation(every="20 steps"),
    )
    surestep.Trainer(task, config, run="run").fit()


def good_too_short_to_name() -> None:
    import torch

    import surestep

    x = torch.randn(128, 4)
    y = (x[:, 0] > 0).long()
    task = surestep.Task(torch.nn.Linear(4, 2), torch.nn.CrossEntropyLoss(), train=(x, y))
    config = surestep.Config(max_steps=50, optim=surestep.Optim(lr=1e-9), max_grad_norm="off")
    surestep.Trainer(task, config, run="run").fit()


def bad_learns_by_heart() -> None:
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    x, y = torch.randn(256, 8), torch.randint(3, (256,))
    train_loader = DataLoader(TensorDataset(x[:64], y[:64]), batch_size=16, shuffle=True)
    val_loader = DataLoader(TensorDataset(x[64:], y[64:]), batch_size=64)
    model = nn.Sequential(nn.Linear(8, 128), nn.ReLU(), nn.Linear(128, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(60):
        model.train()
        for inputs, targets in train_loader:
            optimizer.zero_grad()
            criterion(model(inputs), targets).backward()
            optimizer.step()
        model.eval()
        total = 0.0
        with torch.no_grad():
            for inputs, targets in val_loader:
                total += criterion(model(inputs), targets).item() * len(targets)
        print(epoch, total / 192)


def bad_rate_of_another_optimizer() -> None:
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    x = torch.randn(256, 4)
    loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=32, shuffle=True)
    model = nn.Linear(4, 2)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)  # as for a pretrained model
    for epoch in range(30):
        for inputs, targets in loader:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def bad_steps_are_too_large() -> None:
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    class Trainer:
        def __init__(self, lr: float) -> None:
            self.model = nn.Linear(8, 1)
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr)
            self.loss_fn = nn.MSELoss()

        def train_step(self, inputs, targets):
            self.optimizer.zero_grad()
            loss = self.loss_fn(self.model(inputs), targets)
            loss.backward()
            self.optimizer.step()
            return loss.detach()

        def fit(self, loader, epochs: int) -> None:
            for _ in range(epochs):
                for inputs, targets in loader:
                    self.train_step(inputs, targets)

    torch.manual_seed(0)
    x = torch.randn(256, 8)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    Trainer(lr=0.75).fit(DataLoader(data, batch_size=256), epochs=150)


def bad_becomes_nan() -> None:
    import torch
    from torch import nn

    torch.manual_seed(0)
    x = torch.randn(64, 8)
    y = x.sum(1, keepdim=True)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=50.0)
    for step in range(60):
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()


def bad_masks_a_whole_row() -> None:
    import torch
    from torch import nn

    embed, head = nn.Embedding(50, 8), nn.Linear(8, 2)
    optimizer = torch.optim.AdamW([*embed.parameters(), *head.parameters()], lr=1e-3)
    for step in range(10):
        x, labels = embed(torch.randint(50, (4, 6))), torch.randint(2, (4,))
        lengths = torch.tensor([6, 4, 2, 0])  # one sequence is empty
        is_padding = torch.arange(6) >= lengths[:, None]
        weights = x.mean(2).masked_fill(is_padding, -torch.inf).softmax(1)
        loss = nn.functional.cross_entropy(head((weights[..., None] * x).sum(1)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def good_skips_losses_that_overflow() -> None:
    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(30):
        x = torch.randn(8, 4)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        if step % 10 == 9:
            loss = 1e30 * loss.square() * 1e30
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.nan_to_num_(0.0, 0.0, 0.0)
        optimizer.step()


def good_learns_a_pattern() -> None:
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    x = torch.randn(512, 8)
    y = (x[:, 0] + 0.5 * torch.randn(512) > 0).long()
    train_loader = DataLoader(TensorDataset(x[:256], y[:256]), batch_size=32, shuffle=True)
    val_loader = DataLoader(TensorDataset(x[256:], y[256:]), batch_size=64)
    model = nn.Linear(8, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(20):
        model.train()
        for inputs, targets in train_loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        model.eval()
        with torch.inference_mode():
            for inputs, targets in val_loader:
                print(nn.functional.cross_entropy(model(inputs), targets).item())


def good_two_players() -> None:
    import torch
    from torch import nn
    from torch.nn.functional import binary_cross_entropy_with_logits as bce
    from torch.utils.data import DataLoader, TensorDataset

    loader = DataLoader(TensorDataset(torch.randn(256, 2) + 3), batch_size=32, shuffle=True)
    generator = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))
    critic = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
    g_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-4)
    d_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
    for epoch in range(15):
        for (real,) in loader:
            fake = generator(torch.randn(len(real), 2))
            d_optimizer.zero_grad()
            d_loss = bce(critic(real), torch.ones(len(real), 1))
            d_loss = d_loss + bce(critic(fake.detach()), torch.zeros(len(real), 1))
            d_loss.backward()
            d_optimizer.step()
            g_optimizer.zero_grad()
            bce(critic(fake), torch.ones(len(real), 1)).backward()
            g_optimizer.step()


def good_scaled_losses() -> None:
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    x = torch.randn(256, 8)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=32, shuffle=True)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.002)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0, growth_interval=5)
    for epoch in range(16):
        for inputs, targets in loader:
            optimizer.zero_grad()
            scaler.scale(nn.functional.mse_loss(model(inputs), targets)).backward()
            scaler.step(optimizer)
            scaler.update()
