import itertools

import pytest
import torch
from torch.utils.data import DataLoader

from surestep.base.errors import ConfigError, DataError
from surestep.record.run import Run
from surestep.trainer.dry_run import dry_run, overfit
from tests import tiny
from tests.engine.data.streams import Sized, Unsized, X, Y, of_class
from tests.trainer.test_fit import SCORE, scored

EVERY = "2 epochs"


def evaluated(run):
    return [event["step"] for event in run.events() if event["event"] == "evaluation"]


def saved(run):
    return [event["step"] for event in run.events() if event["event"] == "checkpoint"]


def test_epochs_of_an_unsized_stream_are_counted_when_they_end(tmp_path):
    # 44 samples in batches of 8 are 6 steps.
    said = {"validation": {"every": "1 epoch"}, "checkpoint": {"every": EVERY, "keep_best": 0}}
    run = tiny.fit(tmp_path, {"train": Unsized(), "val": (X, Y)}, max_steps=20, **said)
    assert evaluated(run) == [6, 12, 18, 20]
    assert saved(run) == [12, 20]


@pytest.mark.parametrize("stop", [5, 6, 7])
def test_resumed_run_evaluates_at_the_same_ends_of_epochs(tmp_path, stop):
    parts, said = {"train": Unsized(), "val": Sized()}, {"checkpoint": {"every": "1 step"}}
    with tiny.prepare(tmp_path, parts, max_steps=14, **said) as session:
        for result in session.steps():
            if result.step == stop:
                session.save()
                break
    run = tiny.fit(tmp_path, parts, max_steps=14, **said)
    assert evaluated(run) == [step for step in (6, 12, 14) if step > stop]


@pytest.mark.parametrize(("every", "stop"), [("1 epoch", 18), ("4 steps", 16)])
@pytest.mark.parametrize("kind", [Sized, Unsized])
def test_early_stopping_starts_at_the_same_step_without_a_length(tmp_path, kind, every, stop):
    """The first evaluation after two epochs, which are 12 steps, is the first that counts."""
    parts = scored([0.5, *[0.4] * 9], train=kind())
    said = {"validation": {"every": every, **SCORE}, "early_stop": {"patience": 1}}
    said["early_stop"]["start"] = "2 epochs"
    assert tiny.fit(tmp_path, parts, max_steps=30, **said).status["step"] == stop


def test_sized_stream_trains_for_epochs(tmp_path):
    run = tiny.fit(tmp_path, {"train": Sized(), "val": Sized()}, epochs=2.5)
    assert run.status["step"] == 15
    assert evaluated(run) == [6, 12, 15]


def test_epochs_over_an_unsized_stream_are_rejected():
    with pytest.raises(ConfigError, match="epochs=2 needs a length"):
        tiny.plan({"train": Unsized()})


def test_log_shows_where_an_epoch_ended(tmp_path):
    run = tiny.fit(tmp_path, {"train": Unsized()}, max_steps=14, logging={"every": "1 epoch"})
    assert [event["first"] for event in run.events() if event["event"] == "steps"] == [1, 7, 13]


@pytest.mark.parametrize("data", [Unsized(), DataLoader(Unsized(), 8)], ids=["stream", "loader"])
def test_dry_run_works_on_streams(data):
    acts = dry_run(tiny.task(train=data, val=data, test=data), tiny.config(max_steps=9))
    assert [act.what for act in acts][1:4] == ["one step", "evaluate val", "evaluate test"]


@pytest.mark.parametrize("data", [Unsized(), DataLoader(Unsized(), 4)], ids=["stream", "loader"])
def test_overfit_memorizes_the_first_samples_of_a_stream(data):
    said = {"optim": {"lr": 0.1}, "batch_size": 4, "max_steps": 5}
    buffer = {} if isinstance(data, DataLoader) else {"data": {"shuffle_buffer": 4}}
    assert overfit(tiny.task(train=data), tiny.config(**said, **buffer), 4).has_converged


def test_overfit_with_more_samples_than_the_stream_is_rejected():
    with pytest.raises(DataError, match="There are 3 training samples, and 4 are requested"):
        overfit(tiny.task(train=of_class(Unsized, samples=3)), tiny.config(), 4)


def test_evaluation_in_the_middle_of_a_stream_does_not_advance_it(tmp_path):
    def weights(evaluate):
        model, folder = tiny.model(), tmp_path / str(evaluate)
        parts = {"model": model, "train": Unsized(), "val": Unsized()}
        with tiny.prepare(folder, parts, max_steps=9) as session:
            for _ in session.steps():
                if evaluate:
                    session.evaluate("train")
                    session.evaluate("val")
        return tiny.weights(model)

    assert torch.equal(weights(True), weights(False))


def test_sampler_for_a_stream_is_rejected():
    from surestep import samplers

    with pytest.raises(DataError, match=r"sampler 'sequential' needs indices"):
        tiny.plan({"train": Unsized(), "sampler": samplers.sequential()}, max_steps=3)


def test_config_stores_the_number_of_workers_only_for_a_stream(tmp_path):
    for name, data in {"stream": Unsized(), "placed": (X, Y)}.items():
        tiny.fit(tmp_path / name, {"train": data}, max_steps=1)
    known = {name: Run(tmp_path / name).config["data"] for name in ("stream", "placed")}
    assert known["stream"]["data.num_workers"] == 1
    assert "data.num_workers" not in known["placed"]


def endless():
    """An endless stream whose labels depend on its first feature."""
    rows = torch.Generator().manual_seed(3)
    while True:
        x = torch.randn(X.shape[1], generator=rows)
        yield x, (x[0] > 0).long()


def test_batchnorm_statistics_of_an_average_use_the_read_part_of_a_stream(tmp_path):
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(X.shape[1]), torch.nn.Linear(X.shape[1], 3))
    said = {"max_steps": 6, "average": {"kind": "swa", "start": "2 steps"}}
    run = tiny.fit(tmp_path, {"model": model, "train": lambda: endless()}, **said)
    run.load_model(model, which="average")
    read, _ = zip(*itertools.islice(endless(), 6 * 8), strict=True)
    means = torch.stack(read).view(6, 8, -1).mean(dim=(0, 1))
    torch.testing.assert_close(model[0].running_mean, means, rtol=1e-5, atol=1e-6)
