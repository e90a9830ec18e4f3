"""A resumed run restores the model, but not its optimizer or its GradScaler.

The script loads a checkpoint and continues at the saved epoch, but the optimizer starts without its
moments. The first updates of Adam are then much larger than before, and momentum is lost. The loss
jumps after each resume, and the run differs from one that was never stopped. A new GradScaler
starts again at its first scale and skips steps.

Ignore it if only the weights are wanted. Plain SGD without momentum has no state and is not
reported, nor is a script that does not continue at a saved epoch or step.

Source: https://docs.pytorch.org/tutorials/recipes/recipes/saving_and_loading_a_general_checkpoint.html
"""

from collections.abc import Iterator

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.source.checkpoints import (
    EPOCH_KEY,
    entry_of,
    find_restores,
    is_restored_from,
)
from surestep.doctor.source.trace import Event, Loop, Program, Trace
from surestep.doctor.source.training import (
    describe,
    find_actions,
    is_made_by,
    is_model,
    is_optimizer,
    is_scaler,
    is_scheduler,
    options_of,
)
from surestep.doctor.source.values import Call, Constant, Value, walk

SEVERITY = "error"
FIX = "Save optimizer.state_dict() in the checkpoint, and give it to optimizer.load_state_dict()."
_HARMLESS = frozenset("step update unscale_ zero_grad print len state_dict scale".split())


def check(program: Program) -> Iterator[Problem]:
    """Find optimizers that step after a resume, and whose state no line restores."""
    for trace in program.traces:
        restores = find_restores(trace)
        for event, model, state in restores:
            load = _find_resume(trace, state)
            if load is None or not is_model(model):
                continue
            for kind, value in _find_stateful(trace).items():
                restored = [receiver for _, receiver, _ in restores if _overlaps(receiver, kind)]
                if not restored and not _is_given_away(trace, kind):
                    yield at_event(
                        event,
                        f"The run resumes with a new {value}: nothing restores the state of "
                        f"`{describe(kind)}`.",
                    )
            break


def _find_resume(trace: Trace, state: Value) -> Call | None:
    """Return the `torch.load` of a state if a loop starts at an epoch that was saved with it."""
    loops: set[Loop] = {loop for event in trace.events for loop in event.loops}
    numbers = [part for loop in loops if loop.iterated for part in _start_of(loop.iterated)]
    for number in numbers:
        found = entry_of(number)
        if found is not None and found[1] is not None and EPOCH_KEY.search(found[1]):
            if is_restored_from(state, found[0]):
                return found[0]
    return None


def _start_of(iterated: Value) -> Iterator[Value]:
    ranges = [r for r in walk(iterated) if isinstance(r, Call) and r.name in ("range", "trange")]
    for numbers in ranges:
        if len(numbers.args) > 1:
            yield from walk(numbers.args[0])


def _find_stateful(trace: Trace) -> dict[Value, str]:
    """Return the optimizers and scalers that step, with what they are."""
    stateful: dict[Value, str] = {}
    for action in find_actions(trace):
        if action.kind not in ("step", "scaler_step"):
            continue
        call = action.event.call
        scaler = call.receiver if action.kind == "scaler_step" and call is not None else None
        if isinstance(scaler, Call) and is_scaler(scaler) and not scaler.keywords:
            stateful[scaler] = "GradScaler"
        for option in options_of(action.target):
            if len(options_of(action.target)) == 1 and _has_state(option):
                stateful[option] = "optimizer"
    return stateful


def _has_state(optimizer: Value) -> bool:
    if not is_made_by(optimizer, "torch.optim.") or not isinstance(optimizer, Call):
        return False
    if optimizer.name != "SGD":
        return True
    momentum = optimizer.argument(2, "momentum")
    return isinstance(momentum, Constant) and bool(momentum.value)


def _overlaps(receiver: Value, value: Value) -> bool:
    return any(option is value or not isinstance(option, Call) for option in options_of(receiver))


def _is_given_away(trace: Trace, value: Value) -> bool:
    """Return whether a function that is not followed gets the object, and may restore it."""
    return any(_gets(event, value) for event in trace.events)


def _gets(event: Event, value: Value) -> bool:
    call = event.call
    if call is None or call.name in _HARMLESS or is_scheduler(call) or is_optimizer(call):
        return False
    given = (*call.args, *call.keywords.values())
    return any(part is value for argument in given for part in walk(argument))


def bad_optimizer():
    import os

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    start = 0
    if os.path.exists("missing.pt"):
        checkpoint = torch.load("missing.pt", map_location="cpu")
        model.load_state_dict(checkpoint["model"])
        start = checkpoint["epoch"] + 1
    for epoch in range(start, 3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
        print(epoch)


def bad_momentum():
    import os

    import torch

    class Trainer:
        def __init__(self) -> None:
            self.net = torch.nn.Linear(4, 1)
            self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
            self.first_epoch = 0

        def resume(self, path: str) -> None:
            state = torch.load(path, map_location="cpu")
            self.net.load_state_dict(state["weights"])
            self.first_epoch = state["next_epoch"]

        def fit(self) -> None:
            for _ in range(self.first_epoch, 3):
                self.optimizer.zero_grad()
                self.net(torch.randn(8, 4)).pow(2).mean().backward()
                self.optimizer.step()

    trainer = Trainer()
    if os.path.exists("missing.pt"):
        trainer.resume("missing.pt")
    trainer.fit()


def bad_scaler():
    import os

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters())
    scaler = torch.amp.GradScaler("cpu")
    start = 0
    if os.path.exists("missing.pt"):
        checkpoint = torch.load("missing.pt", map_location="cpu")
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        start = checkpoint["epoch"]
    for _ in range(start, 3):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(torch.randn(8, 4)).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def good_all_restored():
    import os

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    start = 0
    if os.path.exists("missing.pt"):
        checkpoint = torch.load("missing.pt", map_location="cpu")
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        start = checkpoint["epoch"] + 1
    for epoch in range(start, 3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
        print(epoch)


def good_fine_tuning():
    import os

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    if os.path.exists("pretrained.pt"):
        checkpoint = torch.load("pretrained.pt", map_location="cpu")
        model.load_state_dict(checkpoint["model"])
        print(checkpoint["epoch"])
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()


def good_plain_sgd():
    import os

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    start = 0
    if os.path.exists("missing.pt"):
        checkpoint = torch.load("missing.pt", map_location="cpu")
        model.load_state_dict(checkpoint["model"])
        start = checkpoint["epoch"] + 1
    for _ in range(start, 3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()


def good_restored_in_loop():
    import os

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters())
    start = 0
    if os.path.exists("missing.pt"):
        checkpoint = torch.load("missing.pt", map_location="cpu")
        for name, part in {"model": model, "optimizer": optimizer}.items():
            part.load_state_dict(checkpoint[name])
        start = checkpoint["epoch"] + 1
    for _ in range(start, 3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
