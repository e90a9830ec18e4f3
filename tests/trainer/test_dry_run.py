import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import surestep
from surestep.base.errors import CheckpointError, DataError
from surestep.base.temp_folders import make_temp_folder
from surestep.record.run import SelectedWeights
from surestep.trainer import dry_run as rehearse
from surestep.trainer.dry_run import dry_run, overfit
from tests import tiny

X, Y = tiny.data()


class Counting(Dataset):
    """Records which samples were requested."""

    def __init__(self, samples=20):
        self.x, self.y = tiny.data(samples)
        self.asked = set()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        self.asked.add(int(index))
        return self.x[index], self.y[index]


def as_dict(samples):
    """Collate into a batch that only `Task.inputs` below can read."""
    x, y = zip(*samples, strict=True)
    return {"x": torch.stack(x), "y": torch.stack(y)}


def from_dict(batch):
    return (batch["x"],), batch["y"]


def loader():
    return DataLoader(Counting(), batch_size=4, collate_fn=as_dict)


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    with make_temp_folder():  # in the folder of this process, which stays until its end
        pass
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_dry_run_takes_each_action_once():
    task = tiny.task(val={"near": (X, Y), "far": (X, Y)}, test=(X, Y))
    acts = dry_run(task, tiny.config())
    assert [act.what for act in acts] == [
        *("start-up checks", "one step", "evaluate near", "evaluate far", "evaluate test"),
        *("save", "load"),
    ]
    assert all(act.seconds > 0 for act in acts)


def test_dry_run_takes_the_first_step_of_the_run(tmp_path):
    acts = dry_run(tiny.task(), tiny.config())
    run = tiny.fit(tmp_path / "r")
    steps = next(event for event in run.events() if event["event"] == "steps")
    assert acts[1].result == f"loss {steps['loss'][0]:.4g}"


def test_dry_run_leaves_no_files(temporary):
    dry_run(tiny.task(val=(X, Y)), tiny.config())
    assert list(temporary.iterdir()) == []


def test_failed_dry_run_leaves_no_files(temporary):
    with pytest.raises(DataError):
        dry_run(tiny.task(train=(X * torch.nan, Y)), tiny.config())
    assert list(temporary.iterdir()) == []


def test_dry_run_evaluates_at_most_one_batch():
    val, test = Counting(), Counting()
    task = tiny.task(val=val, test=test)
    dry_run(task, tiny.config(data={"num_workers": 0}, validation={"batch_size": 5}))
    assert val.asked == test.asked == set(range(5))


def test_dry_run_calls_the_callbacks_with_the_run():
    seen = []

    class Watching(surestep.Callback):
        def on_step(self, state, result):
            seen.append(result.step)

        def on_evaluate(self, state, metrics):
            seen.append(metrics)

    dry_run(tiny.task(val=(X, Y)), tiny.config(), callbacks=[Watching()])
    assert seen[0] == 1


def test_dry_run_detects_a_checkpoint_that_loads_differently(monkeypatch):
    load = SelectedWeights.load_state

    def corrupted(chosen, state, modes):
        load(chosen, state, modes)
        with torch.no_grad():
            state.model[0].weight[0, 0] += 1

    monkeypatch.setattr(SelectedWeights, "load_state", corrupted)
    with pytest.raises(CheckpointError, match=r"have other values: 0\.weight"):
        dry_run(tiny.task(), tiny.config())


def test_dry_run_detects_a_checkpoint_that_does_not_load(monkeypatch):
    monkeypatch.setattr(SelectedWeights, "load_state", lambda chosen, state, modes: None)
    with pytest.raises(CheckpointError, match="have other values"):
        dry_run(tiny.task(), tiny.config())


def test_metric_that_is_a_table_is_left_out_of_the_line():
    def confusion(outputs, targets):
        return torch.eye(3)

    task = tiny.task(val=(X, Y), metrics={"confusion": surestep.whole_set(confusion)})
    acts = dry_run(task, tiny.config(validation={"metric": "loss"}))
    (line,) = [act.result for act in acts if act.what == "evaluate val"]
    assert line.startswith("val/loss")
    assert "confusion" not in line


def test_dry_run_ignores_the_length_of_the_run():
    acts = dry_run(tiny.task(), tiny.config(epochs=1_000_000.0))
    assert acts[-1].result == "bit for bit"


@pytest.mark.parametrize("part", ["val", "test"])
def test_dry_run_collates_as_the_loader_does(part):
    given = {"train": loader(), part: loader(), "inputs": from_dict}
    acts = dry_run(tiny.task(**given), tiny.config(batch_size=4))
    assert f"evaluate {part}" in [act.what for act in acts]


def test_empty_validation_set_is_named_in_the_error():
    with pytest.raises(DataError, match="The val data is empty"):
        dry_run(tiny.task(val=(X[:0], Y[:0])), tiny.config())


def test_overfit_memorizes_a_few_samples(temporary):
    result = overfit(tiny.task(), tiny.config(optim={"lr": 0.1}), 4)
    assert result.has_converged
    assert result.samples == 4
    assert result.last <= rehearse.NEAR_ZERO * result.first
    assert result.steps % 20 == 0
    assert list(temporary.iterdir()) == []


def test_first_overfit_loss_is_the_loss_before_any_step():
    model = tiny.model()
    expected = float(nn.functional.cross_entropy(model(X[:4]), Y[:4]).detach())
    result = overfit(tiny.task(model=model), tiny.config(optim={"lr": 0.1}), 4)
    assert result.first == pytest.approx(expected, rel=1e-6)
    last = float(nn.functional.cross_entropy(model.eval()(X[:4]), Y[:4]).detach())
    assert result.last == pytest.approx(last, rel=1e-3)


def test_overfit_fails_on_contradictory_targets(monkeypatch):
    monkeypatch.setattr(rehearse, "MAX_STEPS", 60)
    x = torch.ones(6, tiny.FEATURES)
    result = overfit(tiny.task(train=(x, torch.arange(6) % 3)), tiny.config(), 6)
    assert not result.has_converged
    assert result.steps == 60
    assert result.last > 1


@pytest.mark.parametrize(
    "said",
    [
        {"epochs": 1},
        {"max_steps": 1},
        {"micro_batch_size": 8},
        {"schedule": {"name": "cosine", "warmup": "100%"}},
        {"early_stop": {"patience": 1}},
        {"validation": {"metric": "accuracy", "every": "1 step"}},
        {"data": {"drop_last": True}},
        {"optim": {"lr": 0.1, "weight_decay": 20.0}},
    ],
    ids=lambda said: ",".join(said),
)
def test_overfit_ignores_options_of_real_runs(said):
    metrics = {"accuracy": lambda outputs, targets: (outputs.argmax(1) == targets).float().mean()}
    task = tiny.task(val=(X, Y), metrics=metrics)
    assert overfit(task, tiny.config(**{"optim": {"lr": 0.1}, **said}), 4).has_converged


def test_overfit_works_with_a_custom_optimizer():
    task = tiny.task(optimizer=lambda groups: torch.optim.Adam(groups, lr=0.1))
    assert overfit(task, tiny.config(), 4).has_converged


def test_overfit_uses_the_first_samples_of_a_dataset():
    data = Counting()
    config = tiny.config(optim={"lr": 0.1}, data={"num_workers": 0})
    assert overfit(tiny.task(train=data), config, 4).has_converged
    assert data.asked == {0, 1, 2, 3}


def test_overfit_uses_the_collate_function_of_the_loader():
    task = tiny.task(train=loader(), inputs=from_dict)
    config = tiny.config(batch_size=4, optim={"lr": 0.1}, data={"num_workers": 0})
    assert overfit(task, config, 4).has_converged


def test_overfit_with_more_samples_than_the_data_is_rejected():
    with pytest.raises(DataError, match="20"):
        overfit(tiny.task(), tiny.config(), 21)


def test_dry_run_and_overfit_print_nothing(capfd):
    dry_run(tiny.task(val=(X, Y)), tiny.config(logging={"progress": "plain"}))
    overfit(tiny.task(), tiny.config(optim={"lr": 0.1}, logging={"progress": "bar"}), 4)
    assert capfd.readouterr() == ("", "")


def test_reported_checkpoint_size_is_the_size_of_its_files(tmp_path):
    parts = {"model": nn.Sequential(nn.Linear(4, 50_000), nn.Linear(50_000, 3))}
    acts = dry_run(tiny.task(**parts), tiny.config())
    with tiny.prepare(tmp_path / "r", parts) as session:
        next(session.steps())
        path = session.save()
    size = sum(file.stat().st_size for file in Path(path).iterdir())
    assert acts[-2].result == f"{size / 2**20:.1f} MiB"
    assert json.loads((path / "state.json").read_text())


def test_overfit_computes_class_weights_from_all_samples():
    x, y = tiny.data(60)
    order = y.argsort()
    loss = surestep.losses.multiclass(weight="balanced")
    task = tiny.task(train=(x[order], y[order]), loss=loss)
    assert y[order][:4].unique().tolist() == [0]
    assert overfit(task, tiny.config(optim={"lr": 0.1}), 4).has_converged
    assert loss.weights is None  # the user's loss is unchanged
