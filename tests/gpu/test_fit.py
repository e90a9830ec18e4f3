"""micro_batch_size="fit" on a GPU whose memory is limited.

python -m pytest tests/gpu/test_fit.py
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import surestep
from tests.laws.support.tasks import session_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
MIB = 2**20
WIDTH, BATCH = 1024, 4096  # a hidden layer of a full batch takes 16 MiB
OPTIONS: dict[str, Any] = {
    "max_steps": 4,
    "batch_size": BATCH,
    "device": "cuda",
    "precision": "fp32",
    "deterministic": True,
    "logging": {"every": "1 step"},
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SURESTEP_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give torch memory for the model and a part of the activations of a batch."""
    monkeypatch.setattr("surestep.trainer.fit_memory._estimate", lambda *_: None)
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    used = torch.cuda.memory_reserved()
    torch.cuda.set_per_process_memory_fraction((used + 320 * MIB) / total)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


def task_of() -> surestep.Task:
    torch.manual_seed(0)
    layers = [layer for _ in range(12) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 4))
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2 * BATCH, WIDTH, generator=generator)
    y = torch.randint(0, 4, (2 * BATCH,), generator=generator)
    return surestep.Task(model, nn.CrossEntropyLoss(), (x, y), optimizer=sgd)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01)


def weights_of(session: Any) -> torch.Tensor:
    return nn.utils.parameters_to_vector(session.model.parameters()).detach().cpu()


def test_size_that_fits_is_found_and_the_update_is_that_of_this_size(tmp_path, little_memory):
    with session_of(task_of(), tmp_path / "fit", micro_batch_size="fit", **OPTIONS) as session:
        list(session.steps())
        found = weights_of(session)
    events = [event for event in session.run.events() if event["event"] == "micro_batch"]
    sizes = [event["size"] for event in events]
    assert sizes[0] <= BATCH
    assert sizes[-1] < BATCH
    assert all(event["reserved"] >= event["allocated"] > 0 for event in events[1:])
    assert {event["step"] for event in events} == {1}
    with session_of(task_of(), tmp_path / "set", micro_batch_size=sizes[-1], **OPTIONS) as session:
        list(session.steps())
        expected = weights_of(session)
    assert torch.equal(found, expected)


def test_memory_of_a_step_that_ran_out_is_released(tmp_path, little_memory):
    with session_of(task_of(), tmp_path / "fit", micro_batch_size="fit", **OPTIONS) as session:
        after = [torch.cuda.memory_allocated() for _ in session.steps()]
    assert max(after) - min(after) < MIB


def test_evaluation_that_runs_out_is_repeated(tmp_path, little_memory):
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(WIDTH, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not self.training:  # takes 64 KiB for each sample
                x = x.repeat(1, 16).reshape(len(x), 16, -1).mean(1)
            return self.inner(x)

    x, y = torch.randn(BATCH, WIDTH), torch.randint(0, 4, (BATCH,))
    task = surestep.Task(Wide(), nn.CrossEntropyLoss(), (x, y), val=(x.repeat(2, 1), y.repeat(2)))
    options = OPTIONS | {"max_steps": 1, "batch_size": 64}
    with session_of(task, tmp_path / "run", **options, validation={"batch_size": "fit"}) as session:
        list(session.steps())
        session.loop.loader.close()
        for loader in session.evaluations._evaluator.loaders.values():
            loader.layout = loader.layout._replace(batch_size=2 * BATCH, micro_batch_size=2 * BATCH)
        metrics = session.evaluate("val")
    sizes = [e["size"] for e in session.run.events() if e.get("split") == "val"]
    assert sizes[-1] < 2 * BATCH
    assert metrics["val/loss"] > 0
