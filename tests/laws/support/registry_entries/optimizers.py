"""An entry for each optimizer."""

from typing import Any

import torch
from torch import nn

from tests.laws.support.loss_cases import tokens
from tests.laws.support.registry_entries import Entry, Wrong
from tests.laws.support.tasks import rows


class Words(nn.Module):
    """An embedding with sparse gradients, and a dense head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.table = nn.Embedding(20, 16, sparse=True)
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(x)).transpose(1, 2)


def words() -> dict[str, Any]:
    return {"model": Words(), "loss": nn.CrossEntropyLoss(), "train": tokens()}


def wide() -> dict[str, Any]:
    """Return layers of more than 4096 weights, whose state an 8-bit optimizer quantizes."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(10, 512), nn.ReLU(), nn.Linear(512, 16), nn.Linear(16, 3))
    return {"model": model, "loss": nn.CrossEntropyLoss(), "train": rows()}


def deep() -> dict[str, Any]:
    """Return two hidden matrices, norms and biases, and a head."""
    torch.manual_seed(1)
    hidden = [nn.Linear(10, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU()]
    model = nn.Sequential(*hidden, nn.Linear(16, 3))
    return {"model": model, "loss": nn.CrossEntropyLoss(), "train": rows()}


def entry(name: str, wrong: tuple[str, Any, str], **options: Any) -> Entry:
    """Make the entry of an optimizer, rejected with an option of another optimizer."""
    option, value, sentence = wrong
    own = options.pop("of_entry", {})
    return Entry(
        Wrong(sentence, {"optim": {"name": name, option: value}}),
        {"optim": {"name": name, **options}},
        **own,
    )


MOMENTUM = ("momentum", 0.9, "momentum=0.9 requires optim.name='muon', 'rmsprop' or 'sgd', but")
DECAY = ("weight_decay", 0.1, "optim.weight_decay=0.1, but .* has no weight decay")
ENTRIES = {
    "adadelta": entry("adadelta", MOMENTUM, rho=0.8, lr=0.3),
    "adafactor": entry("adafactor", ("eps", 1e-8, "adafactor takes two numbers"), lr=1e-2),
    "adagrad": entry("adagrad", MOMENTUM, lr=1e-1, lr_decay=0.01),
    "adam": entry(
        "adam",
        ("alpha", 0.9, "alpha=0.9 requires optim.name='asgd' or 'rmsprop', but"),
        amsgrad=True,
    ),
    "adamax": entry(
        "adamax", ("amsgrad", True, "requires optim.name='adam' or 'adamw', but"), lr=1e-2
    ),
    "adamw": entry("adamw", MOMENTUM, lr=1e-2),
    # The last bit decides to which of 256 levels a moment is rounded.
    "adamw8bit": entry(
        "adamw8bit",
        ("amsgrad", True, "requires optim.name='adam' or 'adamw', but"),
        lr=1e-2,
        of_entry={"parts": wide, "tolerance": 1e-3},
    ),
    "asgd": entry("asgd", ("t0", -1, "greater than or equal to 0"), lr=1e-1, t0=4.0),
    # Differences of gradients have fewer correct digits than gradients.
    "lbfgs": entry(
        "lbfgs", DECAY, lr=0.1, max_iter=3, history_size=4, of_entry={"tolerance": 1e-4}
    ),
    # Newton-Schulz runs in bf16: a gradient whose last bit differs may round to another matrix.
    "muon": entry(
        "muon",
        ("implementation", "fused", "there is no fused muon. Use 'for_loop'"),
        lr=0.02,
        of_entry={"parts": deep, "tolerance": 1e-3},
    ),
    "nadam": entry("nadam", ("implementation", "fused", "Use 'foreach' or 'for_loop'"), lr=1e-2),
    "radam": entry("radam", MOMENTUM, lr=1e-2),
    "rmsprop": entry(
        "rmsprop",
        ("nesterov", True, "requires optim.name='muon' or 'sgd'"),
        momentum=0.9,
        centered=True,
    ),
    # The last bit may decide the sign of a gradient near zero; here it does not.
    "rprop": entry("rprop", ("etas", (0.5, 0.9), "it must be greater than 1"), lr=1e-2),
    "sgd": entry(
        "sgd", ("betas", (0.9, 0.9), "betas=.* requires optim.name='adam',"), momentum=0.9
    ),
    "sparse_adam": entry(
        "sparse_adam", MOMENTUM, lr=1e-2, adamw_lr=1e-3, of_entry={"parts": words}
    ),
}
