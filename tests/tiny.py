"""The smallest useful tasks: a few samples, a few weights."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import surestep
from surestep.engine.data.batch_loader import BatchLoader, make_loader
from surestep.engine.plan.plan import Plan, TaskInfo
from surestep.engine.plan.system import SystemInfo
from surestep.engine.resolve.resolver import resolve
from surestep.engine.state.state import WHOLE, State
from surestep.trainer.planning import PreparedTask, plan_task
from surestep.trainer.session import Session

FEATURES, CLASSES = 4, 3
FACTS = SystemInfo(
    torch_version=torch.__version__,
    cuda_devices=(),
    cuda_memory=(),
    bf16_native=False,
    tf32=False,
    cpus=2,
    threads=1,
    display="none",
)

GPU = replace(FACTS, cuda_devices=("H200",), cuda_memory=(1,), bf16_native=True, tf32=True, cpus=8)
TWO_GPUS = replace(GPU, cuda_devices=("H200", "H200"), cuda_memory=(1, 1))
OLD_GPU = replace(GPU, bf16_native=False, tf32=False)
GIVEN = TaskInfo(train_samples=100, in_memory=False)
LOADER = {
    **{"batch_size": 10, "shuffle": False, "drop_last": True, "num_workers": 3},
    **{"pin_memory": False, "persistent_workers": False, "prefetch_factor": 4},
}
LOADED = replace(GIVEN, loader=LOADER)
VALIDATED = replace(GIVEN, val_sets=("val", "far"), metrics={"accuracy": None, "score": None})


def data(samples: int = 20, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Features and classes that can be learned from them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, FEATURES, generator=generator)
    return x, x[:, :CLASSES].argmax(dim=1)


def model(seed: int = 0, dropout: float = 0.0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(FEATURES, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, CLASSES)
    )


def task(**parts: Any) -> surestep.Task:
    """A Task with the default parts except those in `parts`."""
    usual = {"model": parts.get("model") or model(), "loss": nn.CrossEntropyLoss(), "train": data()}
    return surestep.Task(**{**usual, **parts})


def config(**said: Any) -> surestep.Config:
    """A Config without progress output; groups as dicts."""
    length = {} if "max_steps" in said else {"epochs": 2}
    logging = {"progress": "quiet", **said.pop("logging", {})}
    return surestep.Config(**{**length, "batch_size": 8, "logging": logging, **said})


def plan(parts: dict[str, Any] | None = None, **said: Any) -> PreparedTask:
    return plan_task(task(**(parts or {})), config(**said))


def train_loader(parts: dict[str, Any], **said: Any) -> BatchLoader:
    planned = plan(parts, **said)
    parts = {"task": planned.task, "loss": planned.loss, "plan": planned.plan}
    return make_loader(planned.task.train, "train", **parts, training=True)


def prepare(run: Path, parts: dict[str, Any] | None = None, **said: Any) -> Session:
    return surestep.prepare(task(**(parts or {})), config(**said), run=run)


def fit(run: Path, parts: dict[str, Any] | None = None, **said: Any) -> surestep.Run:
    return surestep.Trainer(task(**(parts or {})), config(**said), run=run).fit()


def evaluate_twice(session: Session) -> None:
    """Take six steps, evaluate after each third, and save the last."""
    for result in session.steps():
        if result.step % 3 == 0:
            session.evaluate()
        if result.step == 6:
            session.save()
            break


def weights(module: nn.Module) -> Tensor:
    """All parameters and buffers in one vector."""
    tensors = [each for each in module.state_dict().values() if isinstance(each, Tensor)]
    return torch.cat([each.detach().double().flatten() for each in tensors])


def state_of(
    net: nn.Module | None = None, make: Any = None, steps: int = 2, seed: int = 0
) -> State:
    """A state whose optimizer has stepped on gradients drawn from `seed`."""
    net = net or model()
    optimizer = (make or fused_adamw)(net.parameters())
    state = State(net, {WHOLE: optimizer}, torch.amp.GradScaler("cpu", enabled=False))
    for step in range(steps):
        move(state, seed + step)
    return state


def fused_adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.1, fused=True)


def give_gradients(net: nn.Module, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in net.parameters():
        parameter.grad = torch.empty_like(parameter).copy_(
            torch.randn(parameter.shape, generator=generator)
        )


def move(state: State, seed: int) -> None:
    give_gradients(state.model, seed)
    state.optimizer.step()
    step, taken, _, _, items = place = state.progress
    state.progress = place._replace(step=step + 1, steps_taken=taken + 1, items=items + 8)


def decide(
    said: dict[str, Any] | None = None,
    system: SystemInfo = FACTS,
    given: TaskInfo = GIVEN,
    **more: Any,
) -> Plan:
    return resolve(
        surestep.Config.from_options({"epochs": 1.0, **(said or {})}), system, given, **more
    )
