"""Skipped steps are in the events and in skipped.json, which `exclude_samples` reads."""

import pytest
import torch
from torch import nn

import surestep
from surestep.base.errors import ConfigError
from surestep.engine.plan.batching import epoch_permutation
from surestep.record.io import read_json
from surestep.record.skipped_samples import read_samples, summarize_skips
from tests.laws.support.nonfinite_tasks import BATCH, SAMPLES, bomb
from tests.laws.support.tasks import session_of
from tests.laws.test_law_5_skipping import EVERY
from tests.parts import remove_part

OPTIONS = {
    "epochs": 2,
    "batch_size": BATCH,
    "on_nonfinite": "skip",
    "logging": {"every": f"{EVERY} steps"},
}


def guilty() -> int:
    """Return the sample that makes step 3 of the first epoch nonfinite."""
    return int(epoch_permutation(SAMPLES, 0, 0)[2 * BATCH + 2])


def skipped_step(epoch: int) -> dict:
    """Return the record of the step that has the guilty sample in an epoch."""
    order = epoch_permutation(SAMPLES, 0, epoch).tolist()
    first = order.index(guilty()) // BATCH * BATCH
    return {
        "step": (epoch * SAMPLES + first) // BATCH + 1,
        "epoch": epoch,
        "positions": [first, first + BATCH],
        "samples": [guilty()],  # the only nonfinite sample of the batch
        "reason": "nonfinite",
    }


def test_skipped_steps_and_their_samples_are_recorded_and_printed(tmp_path, capsys):
    options = OPTIONS | {"logging": OPTIONS["logging"] | {"progress": "plain"}}
    with session_of(bomb("both", [3]), tmp_path / "run", **options) as session:
        list(session.steps())
    line = f"Step 3 was not finite and is skipped: Sample {guilty()} (position {2 * BATCH + 2})"
    assert line in capsys.readouterr().err
    skipped = session.run.skipped
    assert list(skipped.steps) == [skipped_step(0), skipped_step(1)]
    assert skipped.times == {guilty(): 2}
    events = [event for event in session.run.events() if event["event"] == "skipped"]
    assert [event["alone"] for event in events] == [True, True]
    assert "guilty" not in events[0]
    of_file = read_json(session.run.path / "skipped.json")
    assert of_file["samples"] == skipped.samples
    assert of_file["times"] == list(skipped.times.values())


def test_skipped_file_excludes_the_samples_from_the_next_run(tmp_path):
    with session_of(bomb("both", [3]), tmp_path / "run", **OPTIONS) as session:
        list(session.steps())
    file = session.run.path / "skipped.json"
    options = OPTIONS | {"on_nonfinite": "raise", "exclude_samples": file}
    with session_of(bomb("both", [3]), tmp_path / "next", **options) as again:
        list(again.steps())
    left = SAMPLES - len(session.run.skipped.samples)
    assert again.plan.steps_per_epoch == -(-left // BATCH)
    assert not again.run.skipped.steps
    assert not (again.run.path / "skipped.json").exists()


def test_resumed_run_skips_what_an_uninterrupted_run_skips(tmp_path):
    with session_of(bomb("both", [3, 7]), tmp_path / "whole", **OPTIONS) as whole:
        list(whole.steps())
    with session_of(bomb("both", [3, 7]), tmp_path / "run", **OPTIONS) as session:
        for result in session.steps():
            if result.step == 2:
                session.save()
            if result.step == 8:  # steps 3 and 7 are skipped twice
                break
    with session_of(bomb("both", [3, 7]), tmp_path / "run", **OPTIONS) as session:
        list(session.steps())
    assert session.run.skipped == whole.run.skipped
    assert len(whole.run.skipped.steps) == 4


def test_overflow_is_recorded_and_blames_no_sample(tmp_path):
    options = OPTIONS | {"precision": "fp16", "on_nonfinite": "raise", "epochs": 1}
    with session_of(bomb("gradient", [3]), tmp_path / "run", **options) as session:
        list(session.steps())
    reasons = [step["reason"] for step in session.run.skipped.steps]
    assert reasons == ["overflow"]
    assert session.run.skipped.samples == []


def test_batch_without_items_is_recorded_and_blames_no_sample(tmp_path):
    x, y = torch.randn(12, 4), torch.tensor([0, 1, 2, 0] + [-100] * 4 + [0, 1, 2, 0])
    task = surestep.Task(nn.Linear(4, 3), nn.CrossEntropyLoss(), (x, y))
    options = {"epochs": 1, "batch_size": 4, "data": {"shuffle": False}}
    with session_of(task, tmp_path / "run", **options) as session:
        list(session.steps())
    (step,) = session.run.skipped.steps
    assert (step["reason"], step["samples"]) == ("no_items", [4, 5, 6, 7])
    assert session.run.skipped.samples == []


def test_custom_batches_have_no_sample_indices(tmp_path):
    data = (torch.randn(8, 4), torch.arange(8) % 3)
    task = surestep.Task(nn.Linear(4, 3), nn.CrossEntropyLoss(), data)
    options = {"max_steps": 3, "batch_size": 4, "on_nonfinite": "skip"}
    with session_of(task, tmp_path / "run", **options) as session:
        session.train_step([(torch.full((4, 4), torch.nan), torch.arange(4) % 3)])
        session.loop.log.take()
    (step,) = session.run.skipped.steps
    assert (step["positions"], step["samples"]) == (None, None)


def test_repeated_steps_count_once():
    events = [
        *(skip(1, "overflow"), skip(2, "nonfinite"), skip(3, "nonfinite")),
        {"event": "resume", "step": 2},
    ]
    assert [step["step"] for step in summarize_skips(events).steps] == [1, 2]
    again = summarize_skips([*events, skip(3, "nonfinite")])
    assert [step["step"] for step in again.steps] == [1, 2, 3]


def skip(step, reason, samples=(0, 1)):
    where = {"epoch": 0, "positions": [0, 1], "samples": samples}
    return {"event": "skipped", "step": step, "reason": reason, **where}


def test_sample_that_is_in_a_step_several_times_counts_once_for_it():
    events = [skip(1, "nonfinite", [5, 5, 3]), skip(2, "spike", [9, 3]), skip(3, "spike", None)]
    skipped = summarize_skips([*events, skip(4, "no_items", [9]), skip(5, "overflow", [9])])
    assert list(skipped.times.items()) == [(3, 2), (5, 1), (9, 1)]


@pytest.mark.parametrize("text", ["5\n0\n", "[5, 0]", '{"samples": [5, 0], "steps": []}', "5 0"])
def test_indices_are_read_from_lines_lists_and_the_file_of_a_run(tmp_path, text):
    path = tmp_path / "bad"
    path.write_text(text)
    assert read_samples(path) == [5, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("5\nx\n", "has 'x', which is not an index"),
        ("[5, -1]", "has -1, which is not an index"),
        ("[5, 1.5]", "has 1.5, which is not an index"),
        ("[5, true]", "has True, which is not an index"),
        ('{"sample": [5]}', "has no list of samples"),
        ("[5", "Expecting"),
        ("", "names no sample"),
        (b"\xff\xfe", "it is not text"),
    ],
)
def test_files_without_indices_are_rejected(tmp_path, text, message):
    path = tmp_path / "bad"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=message):
        read_samples(path)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(
        ConfigError, match=r"nowhere.*cannot be read: No such file .*: --exclude-samples 17 42"
    ):
        read_samples(tmp_path / "nowhere")


class Summed(nn.Module):
    """Overflows in the sum over a batch, where no sample overflows alone."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        return self.linear(x.clamp(-1, 1)) + 0 * x[:, :1].sum()


def test_full_batch_is_recorded_if_no_single_sample_overflows(tmp_path, capsys):
    x, y = torch.rand(12, 4), torch.tensor([0, 1, 2] * 4)
    x[4:8] = 1e38
    task = surestep.Task(Summed(), nn.CrossEntropyLoss(), (x, y))
    options = {"epochs": 1, "batch_size": 4, "data": {"shuffle": False}, "on_nonfinite": "skip"}
    logging = {"progress": "plain"}
    with session_of(task, tmp_path / "run", logging=logging, **options) as session:
        list(session.steps())
    (step,) = session.run.skipped.steps
    assert step["samples"] == [4, 5, 6, 7]
    assert "Step 2 was not finite and is skipped: No single sample caused it: each sample is" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("workers", [0, 1])
def test_searching_for_the_samples_changes_no_step(tmp_path, workers):
    """With dropout, BatchNorm and workers, the run equals one without the search."""
    ended = []
    for name in ("looks", "does not"):
        torch.manual_seed(1)
        hidden = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
        x, y = torch.rand(40, 4, generator=torch.Generator().manual_seed(1)), torch.arange(40) % 3
        x[5] = torch.nan
        task = surestep.Task(nn.Sequential(hidden, nn.Linear(8, 3)), nn.CrossEntropyLoss(), (x, y))
        options = {"epochs": 3, "batch_size": 8, "on_nonfinite": "skip", "max_nonfinite_steps": 9}
        options["data"] = {"num_workers": workers}
        with session_of(task, tmp_path / name, **options, seed=4) as session:
            if name == "does not":
                remove_part(session, session.incidents)
            list(session.steps())
            ended.append(session.model.state_dict())
        if name == "looks":
            assert session.run.skipped.samples == [5]
    assert all(torch.equal(ended[0][key], ended[1][key]) for key in ended[0])
