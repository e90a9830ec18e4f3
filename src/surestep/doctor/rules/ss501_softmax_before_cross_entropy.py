"""Cross-entropy gets probabilities, although it applies a softmax itself.

`cross_entropy` expects logits. With a softmax before it, the softmax is applied twice: the second
sees values between 0 and 1 only, so with C classes the loss cannot fall below log(1 + (C-1)/e), and
the gradients are small. Nothing fails: the loss falls slowly, and the accuracy stays too low.

A `log_softmax` before `cross_entropy` is superfluous, but it does not change the loss, so it is not
reported.

Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
"""

from collections.abc import Iterator

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.runtime.origins import name_origin
from surestep.doctor.runtime.tally import Tally
from surestep.doctor.runtime.values import may_be_probabilities
from surestep.doctor.source.losses import find_losses
from surestep.doctor.source.outputs import Outputs
from surestep.doctor.source.trace import Program
from surestep.doctor.watcher import Call, Observation, Run, Watcher

SEVERITY = "error"
FIX = "Give cross_entropy the logits, and apply softmax only where probabilities are needed."
ALSO = ("SS209",)


def check(program: Program) -> Iterator[Problem]:
    """Find cross-entropies of what a softmax returned."""
    outputs = Outputs(program)
    for trace in program.traces:
        for loss in find_losses(trace, "cross_entropy"):
            origin = outputs.all_are(loss.input, "softmax")
            if origin is not None:
                yield at_event(
                    loss.event,
                    f"{loss.describe_input(origin)}, and cross-entropy applies softmax again.",
                    softmax_line=origin.line,
                )


class Watch(Watcher):
    """Check the operation that computed the input of a cross-entropy."""

    FUNCTIONS = ("cross_entropy",)
    SAMPLED = ("on_call",)

    def __init__(self) -> None:
        self._tally = Tally()

    def on_call(self, run: Run, call: Call) -> None:
        tensor = call["input"]
        if tensor.dim() > 1:
            if tensor.requires_grad:
                has_softmax = name_origin(tensor) == "Softmax"
            else:
                has_softmax = may_be_probabilities(tensor, 1)
            self._tally.add(run, "the result of a softmax" if has_softmax else "")

    def observe(self, run: Run) -> Iterator[Observation]:
        for seen in self._tally:
            yield Observation(
                seen.location,
                f"The input of cross_entropy was {seen.reason} in {seen.count} of "
                f"{self._tally.calls} calls, and cross-entropy applies softmax again.",
                seen.since_step,
                {"calls": self._tally.calls, "mistakes": seen.count},
            )


def bad_before_the_call() -> None:
    import torch
    import torch.nn.functional as F

    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        x, y = torch.randn(8, 4), torch.randint(3, (8,))
        probabilities = F.softmax(model(x), dim=1)
        loss = F.cross_entropy(probabilities, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def bad_in_the_evaluation() -> None:
    import torch
    import torch.nn.functional as F

    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(8, 4), torch.randint(3, (8,))
    for _ in range(5):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        with torch.no_grad():
            print(F.cross_entropy(model(x).softmax(1), y).item())


def bad_in_the_model() -> None:
    import torch
    from torch import nn

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden = nn.Linear(4, 16)
            self.out = nn.Linear(16, 3)
            self.softmax = nn.Softmax(dim=1)

        def forward(self, x):
            return self.softmax(self.out(torch.relu(self.hidden(x))))

    model = Classifier()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(10):
        optimizer.zero_grad()
        outputs = model(torch.randn(8, 4))
        loss = criterion(outputs, torch.randint(3, (8,)))
        loss.backward()
        optimizer.step()


def bad_in_a_sequential() -> None:
    import torch
    from torch import nn

    layers = [nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3), nn.Softmax(dim=-1)]
    model = nn.Sequential(*layers).to("cpu")
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.AdamW(model.parameters())

    def train_step(x, y):
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()

    for _ in range(10):
        train_step(torch.randn(8, 4), torch.randint(3, (8,)))


def bad_with_forward_called() -> None:
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 3), nn.Softmax(dim=1))
    criterion = nn.CrossEntropyLoss()
    loss = criterion(model.forward(torch.randn(8, 4)), torch.randint(3, (8,)))
    loss.backward()


def bad_in_methods() -> None:
    import torch
    from torch import nn

    class Learner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 3), nn.Softmax(1))
            self.loss = nn.CrossEntropyLoss()

        def forward(self, x):
            return self.net(x).squeeze(-1)

        def training_step(self, batch):
            x, y = batch
            return self.loss(self(x), y)

    learner = Learner()
    learner.training_step((torch.randn(8, 4), torch.randint(3, (8,)))).backward()


def good_logits() -> None:
    import torch
    import torch.nn.functional as F

    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        x, y = torch.randn(8, 4), torch.randint(3, (8,))
        logits = model(x)
        confidence = F.softmax(logits, dim=1).amax(1).mean()
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def good_softmax_only_in_evaluation() -> None:
    import torch
    from torch import nn

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(4, 3)

        def forward(self, x):
            logits = self.out(x)
            return logits if self.training else logits.softmax(dim=1)

    model = Classifier()
    loss = nn.CrossEntropyLoss()(model(torch.randn(8, 4)), torch.randint(3, (8,)))
    loss.backward()


def good_targets_are_probabilities() -> None:
    import torch
    import torch.nn.functional as F

    teacher, student = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)
    x = torch.randn(8, 4)
    with torch.no_grad():
        soft = F.softmax(teacher(x) / 2, dim=1)
    F.cross_entropy(student(x) / 2, soft).backward()


def good_log_softmax() -> None:
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(dim=1))
    nn.CrossEntropyLoss()(model(torch.randn(8, 4)), torch.randint(3, (8,))).backward()


def good_attention_then_linear() -> None:
    import torch
    from torch import nn

    class Pooling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.score, self.out = nn.Linear(4, 1), nn.Linear(4, 3)

        def forward(self, x):
            weights = self.score(x).softmax(dim=1)
            return self.out((weights * x).sum(1))

    model = Pooling()
    nn.CrossEntropyLoss()(model(torch.randn(8, 5, 4)), torch.randint(3, (8,))).backward()


def good_last_layer_replaced() -> None:
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 3), nn.Softmax(dim=1))
    model[-1] = nn.Identity()
    nn.CrossEntropyLoss()(model(torch.randn(8, 4)), torch.randint(3, (8,))).backward()
