import pytest
import torch
from torch import nn

from surestep.base.errors import TaskError
from surestep.engine.checks.loss import OutputActivationTracker
from tests import tiny

X = torch.randn(8, 4)
SEEN = {
    "module": (lambda x: nn.Sigmoid()(x), "sigmoid"),
    "function": (lambda x: torch.softmax(x, 1), "softmax"),
    "in place": (lambda x: (x + 0).sigmoid_(), "sigmoid"),
    "view": (lambda x: torch.sigmoid(x)[:, :1].squeeze(-1), "sigmoid"),
    "clamped": (lambda x: torch.sigmoid(x).clamp(1e-3, 1 - 1e-3), "sigmoid"),
    "different dtype": (lambda x: torch.softmax(x, 1).double(), "softmax"),
    "before a layer": (lambda x: torch.sigmoid(x) @ torch.eye(4), None),
    "log": (lambda x: torch.log_softmax(x, 1), None),
    "gate": (lambda x: x * torch.sigmoid(x), None),
    "overwritten": (lambda x: torch.sigmoid(x).mul_(2), None),
    "tuple": (lambda x: (torch.sigmoid(x), x), None),
}


@pytest.mark.parametrize(("model", "squash"), SEEN.values(), ids=SEEN)
def test_activation_that_produced_the_outputs_is_detected(model, squash):
    with OutputActivationTracker() as watch:
        outputs = model(X)
    assert watch.activation_of(outputs) == squash


@pytest.mark.parametrize(
    ("last", "loss", "targets"),
    [
        (nn.Softmax(1), nn.CrossEntropyLoss(), tiny.data()[1]),
        (nn.Softmax(1), "multiclass", tiny.data()[1]),
        (nn.Sigmoid(), nn.BCEWithLogitsLoss(), torch.ones(20, 3)),
        (nn.Sigmoid(), "multilabel", torch.ones(20, 3)),
    ],
)
def test_activation_that_the_loss_applies_itself_is_rejected_at_the_start(
    tmp_path, last, loss, targets
):
    parts = {"model": nn.Sequential(nn.Linear(4, 3), last), "loss": loss}
    with pytest.raises(TaskError, match="takes logits"):
        tiny.prepare(tmp_path / "run", {**parts, "train": (tiny.data()[0], targets)}).close()
