"""Programs of two ranks, each beside a plain loop of one process; torchrun runs this module."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import surestep
from surestep.trainer.session import Session
from tests.laws.support.independence import draws_of_run
from tests.parts import add_part
from tests.twice.compare import in_batches, plain_config, seed_of, weights

N, BATCH = 43, 7  # on two ranks 4 and 3 samples, and a last batch of one
X = torch.randn(N, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = (X[:, :1] - 2 * X[:, 1:2] + X[:, 2:3].sin()).clone()
CLASSES = X[:, :3].argmax(1)
TOKENS = torch.randint(5, (N, 3), generator=torch.Generator().manual_seed(2))
TOKENS[3:6], TOKENS[10, 1:] = -100, -100  # a rank has no items in the first batch
WEIGHT = torch.tensor([0.3, 1.0, 2.0, 0.7, 1.1], dtype=torch.float64)
STRATEGIES = ("ddp", "fsdp")


def mlp(out: int = 1) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, out)).double()


def train_plain(
    net: nn.Module,
    loss: Callable[[Any, Tensor], Tensor],
    data: tuple[Tensor, Tensor] = (X, Y),
    *,
    epochs: int = 2,
    clip: float | None = None,
    change: Callable[[Tensor, int], Tensor] = lambda x, step: x,
    after: Callable[[int], object] = lambda step: None,
) -> list[float]:
    """Train by hand with SGD; return the losses of the steps."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses: list[float] = []
    for _ in range(epochs):
        for x, y in in_batches(BATCH, *data):
            optimizer.zero_grad()
            value = loss(net(change(x, len(losses))), y)
            value.backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(net.parameters(), clip)
            optimizer.step()
            losses.append(value.item())
            after(len(losses))
    return losses


def full_weights(session: Session) -> dict[str, Tensor]:
    found = session.model.state_dict().items()
    return {name: w.full_tensor() if isinstance(w, DTensor) else w.clone() for name, w in found}


def train_ranks(
    task: surestep.Task, folder: Path, strategy: str, epochs: int = 2, **options: Any
) -> dict[str, Any]:
    options.setdefault("parallel", {"strategy": strategy})
    config = plain_config(epochs=epochs, batch_size=BATCH, **options)
    with surestep.prepare(task, config, run=folder) as session:
        losses = [float(result.loss) for result in session.steps()]
        return {"losses": losses, "weights": full_weights(session), "metrics": session.evaluate()}


Pair = tuple[Any, Any]  # what the plain loop gives, and what the ranks give
PROGRAMS: dict[str, Callable[[Path, str], Pair]] = {}


def program(function: Callable[[Path, str], Pair]) -> Callable[[Path, str], Pair]:
    PROGRAMS[function.__name__.replace("_", " ")] = function
    return function


@program
def weights_and_losses_are_those_of_one_process(folder: Path, strategy: str) -> Pair:
    net = mlp()
    losses = train_plain(net, functional.mse_loss)
    ours = train_ranks(surestep.Task(mlp(), nn.MSELoss(), train=(X, Y)), folder, strategy)
    return [losses, weights(net)], [ours["losses"], ours["weights"]]


@program
def micro_batches_change_nothing(folder: Path, strategy: str) -> Pair:
    net = mlp()
    losses = train_plain(net, functional.mse_loss)
    task = surestep.Task(mlp(), nn.MSELoss(), train=(X, Y))
    ours = train_ranks(task, folder, strategy, micro_batch_size=2)
    return [losses, weights(net)], [ours["losses"], ours["weights"]]


@program
def clipped_norm_is_that_of_the_full_gradient(folder: Path, strategy: str) -> Pair:
    net = mlp()
    train_plain(net, functional.mse_loss, clip=0.05)
    task = surestep.Task(mlp(), nn.MSELoss(), train=(X, Y))
    return weights(net), train_ranks(task, folder, strategy, max_grad_norm=0.05)["weights"]


@program
def ignored_tokens_and_class_weights_are_counted_over_ranks(folder: Path, strategy: str) -> Pair:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(15)

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x).view(len(x), 5, 3)

    net, loss = Tagger(), nn.CrossEntropyLoss(WEIGHT)
    losses = train_plain(net, loss, (X, TOKENS))
    task = surestep.Task(Tagger(), nn.CrossEntropyLoss(WEIGHT.clone()), train=(X, TOKENS))
    ours = train_ranks(task, folder, strategy)
    return [losses, weights(net)], [ours["losses"], ours["weights"]]


@program
def validation_sets_of_eleven_and_of_one_are_means_over_samples(
    folder: Path, strategy: str
) -> Pair:
    net = mlp()
    train_plain(net, functional.mse_loss)
    sets = {"near": (X[:11] + 1, Y[:11]), "far": (X[:1] - 1, Y[:1])}
    plain = {}
    with torch.no_grad():
        for name, (x, y) in sets.items():
            plain[f"{name}/loss"] = float(functional.mse_loss(net(x), y))
            plain[f"{name}/largest"] = float((net(x) - y).abs().max())
            plain[f"{name}/share"] = float((net(x) > y).double().sum() / 7 / (3 * len(x)))
    task = surestep.Task(
        mlp(),
        nn.MSELoss(),
        train=(X, Y),
        val=sets,
        metrics={
            "largest": surestep.whole_set(lambda out, y: (out - y).abs().max()),
            "share": lambda out, y: ((out > y).double().sum() / 7, 3 * len(out)),
        },
    )
    config = {"validation": {"batch_size": 2, "metric": "near/loss"}}
    return plain, train_ranks(task, folder, strategy, **config)["metrics"]


@program
def average_is_that_of_one_process(folder: Path, strategy: str) -> Pair:
    net = mlp()
    average = {name: w.clone() for name, w in net.named_parameters()}

    def update(step: int) -> None:
        for name, w in net.named_parameters():
            share = 0.2 if step > 1 else 1.0  # the first update copies the weights
            average[name] = average[name].lerp(w.detach(), share)

    train_plain(net, functional.mse_loss, after=update)
    with torch.no_grad():
        for name, w in net.named_parameters():
            w.copy_(average[name])
        plain = {"val/loss": float(functional.mse_loss(net(X[:11]), Y[:11]))}
    task = surestep.Task(mlp(), nn.MSELoss(), train=(X, Y), val=(X[:11], Y[:11]))
    spec = {"kind": "ema", "decay": 0.8, "warmup": False}
    return plain, train_ranks(task, folder, strategy, average=spec)["metrics"]


@program
def frozen_layer_stays_and_the_others_train(folder: Path, strategy: str) -> Pair:
    def frozen() -> nn.Module:
        net = mlp()
        net.get_submodule("0").requires_grad_(False)
        return net

    net = frozen()
    train_plain(net, functional.mse_loss)
    task = surestep.Task(frozen(), nn.MSELoss(), train=(X, Y))
    return weights(net), train_ranks(task, folder, strategy)["weights"]


@program
def random_batch_transform_is_that_of_one_process(folder: Path, strategy: str) -> Pair:
    def change(x: Tensor, step: int) -> Tensor:
        torch.manual_seed(seed_of("transform", 0, step))
        return x + torch.randn(x.shape, dtype=x.dtype)

    net = mlp()
    losses = train_plain(net, functional.mse_loss, change=change)
    task = surestep.Task(
        mlp(),
        nn.MSELoss(),
        train=(X, Y),
        batch_transform=lambda x, y: (x + torch.randn(x.shape, dtype=x.dtype), y),
    )
    ours = train_ranks(task, folder, strategy, micro_batch_size=2)
    return [losses, weights(net)], [ours["losses"], ours["weights"]]


@program
def declared_sum_is_summed_over_ranks(folder: Path, strategy: str) -> Pair:
    def summed(out: Tensor, y: Tensor) -> Tensor:
        return ((out - y) ** 2).sum() / 50

    net = mlp()
    losses = train_plain(net, summed)
    task = surestep.Task(mlp(), summed, train=(X, Y), reduction="sum")
    ours = train_ranks(task, folder, strategy)
    return [losses, weights(net)], [ours["losses"], ours["weights"]]


@program
def logged_value_is_the_mean_over_samples_of_all_ranks(folder: Path, strategy: str) -> Pair:
    class Logs(nn.Module):
        def forward(self, out: Tensor, y: Tensor) -> Tensor:
            surestep.log("first", out.detach().mean())
            return functional.mse_loss(out, y)

    seen: list[float] = []

    class Keep(surestep.Callback):
        def on_log(self, state: Any, point: Any) -> None:
            seen.extend(map(float, point.logged["first"]))

    means: list[float] = []
    net = mlp()

    def loss(out: Tensor, y: Tensor) -> Tensor:
        means.append(float(out.detach().mean()))
        return functional.mse_loss(out, y)

    train_plain(net, loss)
    task = surestep.Task(mlp(), Logs(), train=(X, Y))
    options: dict[str, Any] = {"parallel": {"strategy": strategy}, "logging": {"every": 1}}
    config = plain_config(epochs=2, batch_size=BATCH, **options)
    with surestep.prepare(task, config, run=folder, callbacks=[Keep()]) as session:
        for _ in session.steps():
            pass
    return means, seen


@program
def several_losses_have_their_own_items(folder: Path, strategy: str) -> Pair:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.tags, self.value = mlp(6), nn.Linear(6, 15), nn.Linear(6, 1)
            self.double()

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            h = self.body(x)
            return {"tags": self.tags(h).view(len(x), 5, 3), "value": self.value(h)}

    def make() -> nn.Module:
        torch.manual_seed(4)
        return Two()

    both = torch.arange(N)

    def loss(out: dict[str, Tensor], rows: Tensor) -> Tensor:
        tags = functional.cross_entropy(out["tags"], TOKENS[rows])
        return 0.5 * tags.nan_to_num() + functional.mse_loss(out["value"], Y[rows])

    net = make()
    losses = train_plain(net, loss, (X, both))
    task = surestep.Task(
        make(),
        {"tags": nn.CrossEntropyLoss(), "value": nn.MSELoss()},
        loss_weights={"tags": 0.5},
        train=(X, both),
        inputs=lambda b: (b[0], {"tags": TOKENS[b[1]], "value": Y[b[1]]}),
    )
    ours = train_ranks(task, folder, strategy)
    return [losses, weights(net)], [ours["losses"], ours["weights"]]


@program
def predictions_are_in_stored_order(folder: Path, strategy: str) -> Pair:
    net = mlp()
    train_plain(net, functional.mse_loss)
    with torch.no_grad():
        plain = net(X[:13])
    task = surestep.Task(mlp(), nn.MSELoss(), train=(X, Y), test=(X[:13], Y[:13]))
    config = plain_config(epochs=2, batch_size=BATCH, parallel={"strategy": strategy})
    with surestep.prepare(task, config, run=folder) as session:
        for _ in session.steps():
            pass
        found = session.predict("test")
    return [plain, torch.arange(13)], [found["output"], found["index"]]


@program
def own_batches_of_a_step_are_one_global_batch(folder: Path, strategy: str) -> Pair:
    rank, net = int(os.environ["RANK"]), mlp()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    spans = [(0, 5, 8), (8, 9, 20)]  # the shares of both ranks
    for first, _, end in spans:
        optimizer.zero_grad()
        functional.mse_loss(net(X[first:end]), Y[first:end]).backward()
        optimizer.step()
    task = surestep.Task(mlp(), nn.MSELoss(), train=(X, Y))
    config = plain_config(max_steps=9, batch_size=BATCH, parallel={"strategy": strategy})
    with surestep.prepare(task, config, run=folder) as session:
        for first, middle, end in spans:
            own = slice(first, middle) if rank == 0 else slice(middle, end)
            session.train_step([(X[own], Y[own])])
        return weights(net), full_weights(session)


@program
def plateau_lowers_the_rate_at_the_same_step(folder: Path, strategy: str) -> Pair:
    class Constant(nn.Module):
        """A model whose validation loss gets worse, so each evaluation is a bad one."""

        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Linear(4, 1).double()
            nn.init.zeros_(self.shift.weight), nn.init.zeros_(self.shift.bias)

        def forward(self, x: Tensor) -> Tensor:
            return self.shift(x)

    net = Constant()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    for _ in range(3):
        for x, y in in_batches(BATCH, X, Y):
            optimizer.zero_grad()
            functional.mse_loss(net(x), y).backward()
            optimizer.step()
        with torch.no_grad():
            scheduler.step(functional.mse_loss(net(X), -9 * Y))
    task = surestep.Task(Constant(), nn.MSELoss(), train=(X, Y), val=(X, -9 * Y))
    config = plain_config(
        epochs=3,
        batch_size=BATCH,
        parallel={"strategy": strategy},
        schedule={"name": "reduce_on_plateau", "patience": 0, "factor": 0.5, "warmup": 0},
        validation={"every": "1 epoch"},
    )
    trainer = surestep.Trainer(task, config, run=folder)
    ours: dict[str, Tensor] = {}

    class Keep(surestep.Callback):
        def on_end(self, state: Any) -> None:
            ours.update(full_weights(trainer.session))

    add_part(trainer.session, Keep())
    trainer.fit()
    return weights(net), ours


@program
def batch_size_of_a_dataloader_is_that_of_a_rank(folder: Path, strategy: str) -> Pair:
    net = mlp()
    optimizer, losses = torch.optim.SGD(net.parameters(), lr=0.1), []
    for x, y in in_batches(2 * 5, X, Y):
        optimizer.zero_grad()
        value = functional.mse_loss(net(x), y)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    loader = DataLoader(TensorDataset(X, Y), 5)
    task = surestep.Task(mlp(), nn.MSELoss(), train=loader)
    options: dict[str, Any] = {"parallel": {"strategy": strategy}}
    with surestep.prepare(task, plain_config(epochs=1, **options), run=folder) as session:
        ours = [float(result.loss) for result in session.steps()]
        return [losses, weights(net)], [ours, full_weights(session)]


@program
def limited_validation_reads_the_first_batches_of_all_ranks(folder: Path, strategy: str) -> Pair:
    net = mlp()
    train_plain(net, functional.mse_loss)
    with torch.no_grad():
        plain = {"val/loss": float(functional.mse_loss(net(X[:12]), Y[:12]))}
    task = surestep.Task(mlp(), nn.MSELoss(), train=(X, Y), val=(X, Y))
    options: dict[str, Any] = {"limit_val_batches": 2, "validation": {"batch_size": 3}}
    return plain, train_ranks(task, folder, strategy, **options)["metrics"]


@program
def stream_is_split_as_data_with_positions(folder: Path, strategy: str) -> Pair:
    net = mlp()
    losses = train_plain(net, functional.mse_loss, epochs=1)
    task = surestep.Task(mlp(), nn.MSELoss(), train=lambda: zip(X, Y, strict=True))
    config = plain_config(max_steps=7, batch_size=BATCH, parallel={"strategy": strategy})
    with surestep.prepare(task, config, run=folder) as session:
        ours = [float(result.loss) for result in session.steps()]
        return [losses, weights(net)], [ours, full_weights(session)]


class Tied(nn.Module):
    """An autoencoder whose decoder has the transposed weight of the encoder."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.decoder = nn.Linear(4, 4), nn.Linear(4, 4)
        self.decoder.weight = self.encoder.weight
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.encoder(x).tanh()
        return self.decoder(hidden)[:, :1]


@program
def tied_weight_gets_both_gradients(folder: Path, strategy: str) -> Pair:
    net = Tied()
    losses = train_plain(net, functional.mse_loss)
    ours = train_ranks(surestep.Task(Tied(), nn.MSELoss(), train=(X, Y)), folder, strategy)
    return [losses, weights(net)], [ours["losses"], ours["weights"]]


@program
def gradient_values_are_clipped_after_the_sum_over_ranks(folder: Path, strategy: str) -> Pair:
    net = mlp()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in in_batches(BATCH, X, Y):
        optimizer.zero_grad()
        functional.mse_loss(net(x), y).backward()
        nn.utils.clip_grad_value_(net.parameters(), 0.02)
        optimizer.step()
    task = surestep.Task(mlp(), nn.MSELoss(), train=(X, Y))
    options: dict[str, Any] = {"clip_value": 0.02, "micro_batch_size": 2}
    return weights(net), train_ranks(task, folder, strategy, epochs=1, **options)["weights"]


@program
def metrics_of_classes_are_summed_over_ranks(folder: Path, strategy: str) -> Pair:
    net = mlp(3)
    train_plain(net, functional.cross_entropy, (X, CLASSES))
    with torch.no_grad():
        out, y = net(X[:11]), CLASSES[:11]
    chosen = out.argmax(1)
    plain = {
        "val/loss": float(functional.cross_entropy(out, y)),
        "val/accuracy": float((chosen == y).double().mean()),
        "val/recall": float((chosen[y == 2] == 2).double().mean()),
    }

    def recall(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        truth = targets == 2
        return (truth & (outputs.argmax(1) == 2)).sum(), truth.sum()

    task = surestep.Task(
        mlp(3),
        nn.CrossEntropyLoss(),
        train=(X, CLASSES),
        val=(X[:11], CLASSES[:11]),
        metrics={"accuracy": lambda out, y: (out.argmax(1) == y).double().mean(), "recall": recall},
    )
    options: dict[str, Any] = {"validation": {"batch_size": 3, "metric": "val/loss"}}
    return plain, train_ranks(task, folder, strategy, **options)["metrics"]


@program
def checkpoint_is_evaluated_until_the_session_is_closed(folder: Path, strategy: str) -> Pair:
    net = mlp()
    train_plain(net, functional.mse_loss, epochs=1)
    task = surestep.Task(mlp(), nn.MSELoss(), train=(X, Y), val=(X[:11], Y[:11]))
    config = plain_config(epochs=1, batch_size=BATCH, parallel={"strategy": strategy})
    with surestep.prepare(task, config, run=folder) as session:
        for _ in session.steps():
            pass
        session.save()
        ours: list[Any] = [session.evaluate_checkpoint("val", "last")["val/loss"]]
    for use in (session.evaluate_checkpoint, session.predict):
        try:
            use("val", "last")
        except surestep.SurestepError as error:
            ours.append(str(error).partition(",")[0])
    closed = "The session is closed and its ranks are no longer connected"
    return [float(functional.mse_loss(net(X[:11]), Y[:11])), closed, closed], ours


DRAWING: dict[str, dict[str, bool]] = {
    "samples": {},
    "stream": {"stream": True},
    "step of the task": {"manual": True},
}


def main(folder: Path) -> None:
    """Write what each program gives on this rank, or the error, and what this rank draws."""
    rank, found = int(os.environ["RANK"]), dict[tuple[str, str], Any]()
    for name, options in DRAWING.items():
        found["draws", name] = draws_of_run(folder / "draws" / name, 401, ranks=2, **options)
    for strategy in STRATEGIES:
        for name, pair in PROGRAMS.items():
            try:
                found[name, strategy] = pair(folder / strategy / name.replace(" ", "-"), strategy)
            except Exception as error:
                found[name, strategy] = f"{type(error).__name__}: {error}"
    torch.save(found, folder / f"rank-{rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
