"""A loss compares every prediction with every target, because their shapes differ.

Predictions of shape (N, 1) and targets of shape (N,) are broadcast to a table of N x N pairs. The
loss is then least if the model predicts the mean of all targets for each sample. Nothing fails:
PyTorch warns for some losses, and not for those that are written by hand.

Shapes that are broadcast to the shape of one of the two, such as a constant target, are not
reported.

Source: https://docs.pytorch.org/docs/stable/notes/broadcasting.html
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING

from surestep.doctor.watcher import NOWHERE, Call, Observation, Run, Watcher

if TYPE_CHECKING:
    from torch import Tensor

SEVERITY = "error"
FIX = "Give both the same shape, such as prediction.squeeze(1) or target.unsqueeze(1)."
_FEWEST = 2  # calls


class Watch(Watcher):
    """Compare the shapes of predictions and targets."""

    FUNCTIONS = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")

    def __init__(self) -> None:
        self._location = NOWHERE
        self._calls = self._mistakes = self._first = 0
        self._shapes: tuple[tuple[int, ...], ...] = ()
        self._name = ""

    def on_call(self, run: Run, call: Call) -> None:
        self._calls += 1
        prediction, target = call["input"], call["target"]
        if prediction.shape == target.shape or not _is_table(prediction, target):
            return
        self._mistakes += 1
        if self._mistakes == 1:
            self._first, self._location, self._name = run.step + 1, run.locate(), call.name
            self._shapes = tuple(prediction.shape), tuple(target.shape)

    def observe(self, run: Run) -> Iterator[Observation]:
        if self._mistakes >= _FEWEST:
            prediction, target = self._shapes
            yield Observation(
                self._location,
                f"{self._name} broadcast predictions of shape {prediction} and targets of shape "
                f"{target} in {self._mistakes} of {self._calls} calls: it compared each with all.",
                self._first,
                {"input": prediction, "target": target, "calls": self._mistakes},
            )


def _is_table(prediction: Tensor, target: Tensor) -> bool:
    """Return whether values are paired that do not belong together, and not only repeated."""
    import torch

    if prediction.dim() == target.dim():
        return False  # as in a deliberate comparison of all pairs
    try:
        shape = torch.broadcast_shapes(prediction.shape, target.shape)
    except RuntimeError:
        return False
    return prod(shape) > max(prediction.numel(), target.numel())


def bad_column_and_vector() -> None:
    import torch
    from torch.nn.functional import mse_loss

    x = torch.randn(64, 4)
    y = x.sum(1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(10):
        loss = mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def bad_criterion() -> None:
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    class Regressor(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)

    X = torch.randn(96, 4)
    loader = DataLoader(TensorDataset(X, X[:, 0] * 2), batch_size=32, shuffle=True)
    model, criterion = Regressor(), nn.L1Loss()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(2):
        for inputs, targets in loader:
            opt.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            opt.step()


def bad_squeezed_targets() -> None:
    import torch
    import torch.nn as nn

    class Forecaster(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(1, 8, batch_first=True)
            self.out = nn.Linear(8, 1)

        def forward(self, series: torch.Tensor) -> torch.Tensor:
            hidden, _ = self.rnn(series)
            return self.out(hidden[:, -1])

    model = Forecaster()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_fn = nn.SmoothL1Loss()
    for _ in range(5):
        windows = torch.randn(16, 11, 1)
        prediction = model(windows[:, :10])
        loss = loss_fn(prediction, windows[:, 10].squeeze())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def good_same_shape() -> None:
    import torch
    from torch.nn.functional import mse_loss

    x = torch.randn(64, 4)
    y = x.sum(1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(10):
        loss = mse_loss(model(x).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def good_one_target_for_all() -> None:
    import torch
    from torch.nn.functional import mse_loss

    critic = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(critic.parameters(), lr=0.05)
    real = torch.tensor(1.0)
    for _ in range(10):
        loss = mse_loss(critic(torch.randn(16, 4)), real)  # least squares, as in LSGAN
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def good_all_pairs() -> None:
    import torch
    from torch.nn.functional import l1_loss

    encoder = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.05)
    for _ in range(10):
        codes, others = encoder(torch.randn(8, 4)), encoder(torch.randn(8, 4))
        loss = l1_loss(codes[:, None, :], others[None, :, :])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
