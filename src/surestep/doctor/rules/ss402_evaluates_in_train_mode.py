"""A model with dropout or BatchNorm is evaluated in train mode.

Dropout then makes the metrics worse and different in each evaluation. BatchNorm normalises with the
statistics of each batch, and updates its running statistics from the validation data. Nothing
fails: the numbers are only wrong.

Ignore it if train mode is wanted, as for Monte-Carlo dropout. Forward passes whose output is not
compared with targets, such as those that update the statistics of BatchNorm, are not reported.

Source: https://docs.pytorch.org/docs/stable/notes/autograd.html#locally-disable-grad-doc
"""

import re
from collections.abc import Iterator

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.source.evaluation import (
    find_forwards,
    has_training,
    is_held_out,
    is_measured,
)
from surestep.doctor.source.modes import find_switch, is_never_switched
from surestep.doctor.source.modules import depends_on_mode
from surestep.doctor.source.trace import Event, Program, Trace
from surestep.doctor.source.training import (
    describe,
    is_made_by,
    is_without_grad,
    options_of,
    strip,
)
from surestep.doctor.source.values import Call, Instance, Value

SEVERITY = "error"
FIX = "Call model.eval() before the evaluation, and model.train() before training continues."

_ON_PURPOSE = re.compile(r"monte.?carlo|mc_?dropout|enable_dropout", re.IGNORECASE)


def check(program: Program) -> Iterator[Problem]:
    """Find measured forward passes without gradients in train mode."""
    if _ON_PURPOSE.search(program.file.text):
        return
    for trace in program.traces:
        for event, output in find_forwards(trace):
            model = strip(output.receiver)
            if model is None or not is_without_grad(event) or not depends_on_mode(model):
                continue
            if not _is_evaluation(trace, event, output):
                continue
            switch = find_switch(trace, event, model, is_training=True)
            if switch is not None or _stays_in_train_mode(trace, event, model):
                yield at_event(
                    event,
                    f"`{describe(output.receiver)}` is in train mode here: dropout and BatchNorm "
                    "change what is measured.",
                    train_line=getattr(switch.event.node, "lineno", None) if switch else None,
                )


def _is_evaluation(trace: Trace, event: Event, output: Call) -> bool:
    if event.loop is not None:
        if has_training(trace, event):
            if not is_held_out(output):
                return False
        elif is_made_by(event.loop.iterated, "range"):
            return False  # samples of the output, with dropout on purpose
    return is_measured(trace, event, output)


def _stays_in_train_mode(trace: Trace, event: Event, model: Value) -> bool:
    is_new = all(
        isinstance(option, Instance)
        or is_made_by(option, "torch.nn.", "torchvision.models.", "timm.create_model")
        for option in options_of(model)
    )
    is_made_here = trace.entry is None or any(
        model in (made.value, strip(made.value)) for made in trace.events
    )
    return is_new and is_made_here and is_never_switched(trace, event, model)


def bad_validation_in_the_epoch():
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [(torch.randn(8, 4), torch.randint(2, (8,))) for _ in range(4)]
    for _ in range(2):
        for x, y in batches[:3]:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        with torch.no_grad():
            for x, y in batches[3:]:
                accuracy = (model(x).argmax(1) == y).float().mean()
        print(accuracy)


def bad_in_a_function():
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)
            self.head = nn.Linear(4, 1)

        def forward(self, x):
            return self.head(self.norm(x))

    @torch.no_grad()
    def evaluate(model, batches):
        criterion = nn.MSELoss(reduction="sum")
        return sum(criterion(model(x), y).item() for x, y in batches)

    model = Net()
    model.train()
    print(evaluate(model, [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(3)]))


def bad_full_batch():
    import torch
    import torch.nn as nn

    X, y = torch.randn(64, 4), torch.randint(0, 2, (64,))
    X_train, y_train, X_test, y_test = X[:48], y[:48], X[48:], y[48:]
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    loss_fn = nn.CrossEntropyLoss()
    opt = torch.optim.Adam(net.parameters())
    for _ in range(3):
        net.train()
        opt.zero_grad()
        loss_fn(net(X_train), y_train).backward()
        opt.step()
        with torch.inference_mode():
            print(loss_fn(net(X_test), y_test).item())


def bad_after_loading():
    import io

    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 2))
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    model.load_state_dict(torch.load(file))
    x, y = torch.randn(16, 4), torch.randint(2, (16,))
    with torch.no_grad():
        predicted = model(x).argmax(dim=1)
    print((predicted == y).float().mean())


def good_eval_and_train():
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [(torch.randn(8, 4), torch.randint(2, (8,))) for _ in range(4)]
    for _ in range(2):
        model.train()
        for x, y in batches[:3]:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        model.eval()
        correct = 0
        with torch.no_grad():
            for x, y in batches[3:]:
                correct += (model(x).argmax(1) == y).sum().item()
        print(correct)


def good_monte_carlo_samples():
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    x, y = torch.randn(8, 4), torch.randn(8, 1)
    model.train()
    with torch.no_grad():
        samples = torch.stack([model(x) for _ in range(20)])
    print(samples.std(0), nn.functional.mse_loss(samples.mean(0), y))


def good_statistics_of_batchnorm():
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    batches = [torch.randn(8, 4) for _ in range(4)]
    model.train()
    with torch.no_grad():
        for x in batches:
            model(x)
    model.eval()


def good_without_modes():
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 1))
    x_val, y_val = torch.randn(8, 4), torch.randn(8, 1)
    with torch.no_grad():
        print(nn.functional.mse_loss(model(x_val), y_val).item())


def good_mode_of_the_phase():
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for phase in ("train", "val"):
        model.train(phase == "train")
        x, y = torch.randn(8, 4), torch.randint(2, (8,))
        with torch.set_grad_enabled(phase == "train"):
            loss = nn.functional.cross_entropy(model(x), y)
        if phase == "train":
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(phase, loss.item())
