"""A user's script with annotations: `mypy --strict` and basedpyright accept it."""

from collections.abc import Iterator
from pathlib import Path
from typing import assert_type

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import surestep
from surestep import errors, losses, samplers


class Points(Dataset[tuple[Tensor, Tensor]]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.randn(4), torch.tensor(index % 2)


class Stop(surestep.Callback):
    def __init__(self) -> None:
        self.best = 0.0

    def on_step(
        self, state: surestep.State, result: surestep.StepResult
    ) -> surestep.Request | None:
        return surestep.Request.STOP if state.progress.step == 100 else None

    def on_log(self, state: surestep.State, point: surestep.LogPoint) -> None:
        print(point.first_step, point.loss[-1], point.samples / point.seconds)

    def on_evaluate(self, state: surestep.State, metrics: surestep.Metrics) -> None:
        self.best = max(self.best, metrics["val/accuracy"])

    def on_save(self, state: surestep.State, checkpoint: surestep.SavedCheckpoint) -> None:
        print(checkpoint.path.name, checkpoint.metrics.get("val/loss", 0.0) < 1)

    def on_batch(self, state: surestep.State, batch: surestep.Batch) -> None:
        print(batch.samples)


class Numbers(surestep.Callback):
    def on_evaluate(self, state: surestep.State, metrics: dict[str, float]) -> None:
        print(sum(metrics.values()))


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(1) == targets).float().mean()


def counted(outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
    return (outputs.argmax(1) == targets).sum(), len(targets)


def own_loss(outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    return {"data": nn.functional.cross_entropy(outputs, targets), "size": outputs.pow(2).mean()}


def stream() -> Iterator[tuple[Tensor, Tensor]]:
    yield torch.randn(4), torch.tensor(1)


def optimizer(groups: list[dict[str, object]]) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=0.1)


def factor(step: int, total: int) -> float:
    return 1 - step / total


def gan(step: surestep.ManualStep) -> None:
    for micro in step.micro_batches():
        step.backward(step.model(*micro.args).mean(), micro)
    step.clip("g")
    step.step("g")


def tasks() -> list[surestep.Task]:
    x, y = torch.randn(40, 4), torch.randint(0, 2, (40,))
    net = build()
    return [
        surestep.Task(net, nn.CrossEntropyLoss(), train=(x, y), val=(x, y)),
        surestep.Task(build, losses.multiclass(), Points(), metrics={"accuracy": accuracy}),
        surestep.Task(nn.Linear(4, 2), "multiclass", train=[(x[0], y[0])], val={"a": Points()}),
        surestep.Task(build, own_loss, train=DataLoader(Points()), metrics={"counted": counted}),
        surestep.Task(build, own_loss, train=stream, items="samples", reduction="mean"),
        surestep.Task(build, own_loss, train=stream, items=lambda batch: len(batch[1])),
        surestep.Task(
            build,
            {"one": nn.MSELoss(), "two": "multiclass"},
            train=TensorDataset(x, y),
            loss_weights={"one": 2},
            sampler=samplers.weighted([1.0] * 40),
            batch_transform=surestep.batch_transforms.mixup(0.2, classes=2),
            optimizer=optimizer,
            schedule=factor,
            keep_eval=[net],
            init=surestep.InitWeights(Path("weights.safetensors")),
        ),
        surestep.Task(
            build,
            train={"x": x, "y": y},
            step=gan,
            optimizers={"g": surestep.Optim(lr=1e-3), "d": surestep.OptimizerSpec()},
        ),
    ]


def options() -> list[surestep.Config]:
    return [
        surestep.Config(
            epochs=2,
            batch_size=np.int64(8),
            optim={"name": "sgd", "lr": 0.1, "momentum": 0.9},
            schedule="cosine",
            validation={"every": "1 epoch", "metric": "accuracy"},
            early_stop=5,
            average="ema",
            checkpoint="10 minutes",
            parallel="ddp",
            logging={"trackers": ["tensorboard"], "progress": "quiet"},
            exclude_samples=[3, 17],
            device=torch.device("cpu"),
            precision=torch.bfloat16,
            doctor={"ignore": {"SS117": "we clip on purpose"}},
        ),
        surestep.Config(
            max_steps=1000,
            max_grad_norm=None,
            optim=surestep.Optim(
                name=torch.optim.AdamW,
                betas=[0.9, 0.95],
                groups=["head.* lr=1e-3", surestep.ParamGroup("norm.*", weight_decay=0)],
            ),
            schedule=surestep.Schedule(name="multi_step", milestones=["10 epochs", "20 epochs"]),
            compile=False,
            checkpoint=surestep.Checkpoint(every=500, mirror=Path("/backup/run")),
            doctor=surestep.Doctor(ignore=["SS117=we clip on purpose"]),
        ),
    ]


def train(task: surestep.Task, config: surestep.Config) -> float:
    trainer = surestep.Trainer(task, config, run="runs/typed", callbacks=[Stop(), Numbers()])
    run = trainer.fit()
    best: surestep.CheckpointInfo = run.best
    assert_type(run.best.metrics["val/loss"], float)
    assert_type(trainer.evaluate("val")["val/accuracy"], float)
    rows: list[list[float]] = trainer.evaluate("val").tables["val/confusion"]
    predictions: surestep.Predictions = trainer.predict("val")
    output: NDArray[np.float32] = predictions["output"]
    print(best.step, best.path, run.last.step, rows, output.shape, run.history()["train/loss"][-1])
    runs: surestep.RunList = surestep.runs("runs", state=["finished"], sort="best")
    summary: surestep.RunSummary = runs.best("val/loss")
    history: surestep.History = summary.run.history()
    print(history.to_pandas(), [each.metrics for each in history.final])
    found = surestep.Run("runs/typed").load_model(build(), which="last")
    return found.metrics["val/loss"]


def loop(task: surestep.Task, config: surestep.Config) -> surestep.Plan:
    with surestep.prepare(task, config, run=Path("runs/loop"), allow=["optim.lr"]) as session:
        opened: surestep.Session = session
        for result in opened.steps():
            step: surestep.StepResult = result
            if step.step % 10 == 0 and session.evaluate()["val/loss"] < 0.1:
                session.save()
        return session.plan


def search() -> dict[str, float]:
    result: surestep.SearchResult = surestep.search(
        "spiral", {"optim.lr": [1e-3, 1e-2]}, trials=2, objectives=["val/loss"]
    )
    return result.best.values


def main() -> None:
    try:
        train(tasks()[0], options()[0])
    except errors.NonFiniteError as error:
        print(error.step, error.module, error.samples)
    except surestep.SurestepError as error:
        print(error)


if __name__ == "__main__":
    main()
