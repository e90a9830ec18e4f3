"""The script uses the deprecated names of automatic mixed precision.

`torch.cuda.amp.autocast`, `torch.cuda.amp.GradScaler` and `torch.cpu.amp.autocast` do the same as
`torch.amp.autocast` and `torch.amp.GradScaler` with a device. They print a warning and will be
removed from PyTorch.

Ignore it if the script must run with PyTorch older than 2.3. A script that imports the new names
first, and the old ones as a fallback, is not reported.

Source: https://docs.pytorch.org/docs/stable/amp.html
"""

from collections.abc import Iterator

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.source.trace import Program

SEVERITY = "info"
FIX = 'Use torch.amp.autocast("cuda") and torch.amp.GradScaler("cuda").'
_OLD = {
    "torch.cuda.amp.autocast": 'torch.amp.autocast("cuda")',
    "torch.cuda.amp.GradScaler": 'torch.amp.GradScaler("cuda")',
    "torch.cuda.amp.autocast_mode.autocast": 'torch.amp.autocast("cuda")',
    "torch.cuda.amp.grad_scaler.GradScaler": 'torch.amp.GradScaler("cuda")',
    "torch.cpu.amp.autocast": 'torch.amp.autocast("cpu")',
}


def check(program: Program) -> Iterator[Problem]:
    """Find calls by an old name that do not depend on the version of PyTorch."""
    for trace in program.traces:
        calls = [(event, event.call) for event in trace.events]
        for event, call in calls:
            if call is None or call.path not in _OLD or event.branches:
                continue
            is_fallback = any(
                other is not None and other.node is call.node
                for _, other in calls
                if other is not call
            )
            if not is_fallback:
                yield at_event(
                    event, f"`{call.path}` is deprecated: it is `{_OLD[call.path]}` now."
                )


def bad_autocast():
    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        with torch.cuda.amp.autocast(enabled=False):
            loss = model(torch.randn(8, 4)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def bad_scaler():
    import torch
    from torch.cuda.amp import GradScaler

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = GradScaler(enabled=False)
    for _ in range(10):
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(8, 4)).pow(2).mean()).backward()
        scaler.step(optimizer)
        scaler.update()


def bad_on_cpu():
    import torch

    class Learner:
        def __init__(self):
            self.model = torch.nn.Linear(4, 1)

        def predict(self, x):
            with torch.inference_mode(), torch.cpu.amp.autocast(dtype=torch.bfloat16):
                return self.model(x)

    Learner().predict(torch.randn(8, 4))


def good_new_names():
    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    for _ in range(10):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.randn(8, 4)).pow(2).mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def good_fallback():
    import torch

    try:
        from torch.amp import GradScaler
    except ImportError:
        from torch.cuda.amp import GradScaler

    scaler = GradScaler(enabled=False)
    print(scaler.is_enabled(), torch.__version__)


def good_by_version():
    import torch

    if hasattr(torch.amp, "GradScaler"):
        scaler = torch.amp.GradScaler("cpu", enabled=False)
    else:
        scaler = torch.cuda.amp.GradScaler(enabled=False)
    print(scaler.is_enabled())
