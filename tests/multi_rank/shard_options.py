"""Options that must act on shards as on full parameters: FSDP on two ranks."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tests.multi_rank.cases import data, task, trained
from tests.multi_rank.fsdp import whole_weights

ELEMENTWISE = (
    *("adadelta", "adagrad", "adam", "adamax", "asgd", "nadam", "radam", "rmsprop", "rprop"),
    "sgd",
)


class Deep(nn.Module):
    """Two blocks between an input and an output layer, and a layer that shares a weight."""

    def __init__(self, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.layers = nn.ModuleList(
            [nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)) for _ in range(2)]
        )
        self.register_buffer("scale", torch.rand(8), persistent=False)
        self.tied = nn.Linear(8, 8)
        self.tied.weight = self.layers[0][0].weight
        self.norm, self.last = norm or nn.Identity(), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = x + layer(x)
        return self.last(self.norm(self.tied(x) * self.scale))


class Case(NamedTuple):
    """Options, options of shards only, and the tolerance of the weights."""

    said: dict[str, Any]
    parallel: dict[str, Any] = {}  # a NamedTuple is immutable
    tolerance: float = 1e-6
    large: float = 1.0  # the factor of a sample of the last rank
    normed: bool = False


INNER = {"wrap_policy": "name layers.*.0 layers.*.2"}
FP16 = {"precision": "fp16", "data": {"shuffle": False}}
ON_PARTS: dict[str, Case] = {
    **{name: Case({"optim": {"name": name, "lr": 1e-2}}) for name in ELEMENTWISE},
    "fp16, one rank overflows": Case(FP16, tolerance=1e-3, large=-1e3),
    "bf16": Case({"precision": "bf16"}, tolerance=5e-3),
    "bf16 with BatchNorm": Case({"precision": "bf16"}, tolerance=0.1, normed=True),
    "ema": Case({"average": {"kind": "ema", "decay": 0.9}}),
    "as usual": Case({}),
    "from meta": Case({}, {"meta_init": True}),
    "offload": Case({}, {"offload": "all"}),
    "clip_value": Case({"clip_value": 0.01, "micro_batch_size": 4}),
    "recomputed": Case({"activation_checkpointing": "on"}),
    "recomputed around blocks": Case({"activation_checkpointing": "layers.*"}, INNER),
    "recomputed in blocks": Case({"activation_checkpointing": "layers.0.0"}),
    "frozen until later": Case(
        {"optim": {"groups": ["layers.0 freeze", "first freeze='3 steps'"], "lr": 1e-2}}
    ),
    "skipping": Case({"on_nonfinite": "skip", "data": {"shuffle": False}}, large=float("nan")),
}


def run(folder: Path, case: Case, *, many: bool) -> dict[str, Any]:
    x, y = data(samples=100)
    x[59] *= case.large
    norm = nn.BatchNorm1d(8) if case.normed else None

    built = []

    def model() -> nn.Module:
        torch.manual_seed(3)
        built.append(torch.empty(0).device.type)
        return Deep(norm)

    said = {"max_steps": 6, **case.said}
    if many:
        said["parallel"] = {"strategy": "fsdp", **case.parallel}
    made = task((x, y), model)
    found = trained(folder, made, weights=whole_weights, shows=counted, **said)
    return {**found, "built": built}


def counted(session: Any) -> dict[str, Any]:
    skipped = (session.state.counts.overflow, session.state.counts.nonfinite)
    return {"skipped": skipped, "predicted": torch.from_numpy(session.predict("val")["output"])}
