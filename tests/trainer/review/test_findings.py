"""Findings at the end of a run: when each rule must report, and when it must not."""

import inspect
import re
import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset

from surestep.base.errors import ConfigError
from surestep.engine.step import loop, step_log
from surestep.record.run import Run
from surestep.trainer.review.case import Case, Observed
from surestep.trainer.review.of_run import ss614
from tests import tiny

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.utils.checkpoint hides some")
X, Y = tiny.data(64)
LONG = {"epochs": None, "max_steps": 120, "logging": {"every": "10 steps"}}


class Clock:
    """Stands still unless it is moved."""

    now = 0.0


class Rows(Dataset):
    """Rows that take a while to load."""

    def __init__(self, seconds=0.0, clock=None):
        self.seconds, self.clock = seconds, clock

    def __len__(self):
        return len(Y)

    def __getitem__(self, index):
        if self.clock is not None:
            self.clock.now += self.seconds
        return X[index], Y[index]


class Slow(nn.Module):
    """A model whose forward takes a while."""

    def __init__(self, seconds, clock):
        super().__init__()
        self.seconds, self.clock, self.linear = seconds, clock, nn.Linear(4, 3)

    def forward(self, x):
        self.clock.now += self.seconds
        return self.linear(x)


def found(tmp_path, parts=None, *, timed=False, **options):
    """Train and return the findings by rule; those that depend on timing only if `timed`."""
    usual = {**LONG, "optim": {"lr": 1e-2}, "max_grad_norm": "off"}
    made = tiny.fit(tmp_path / "run", {"train": (X, Y), **(parts or {})}, **{**usual, **options})
    every = {each["rule"]: each for each in made.status["findings"]}
    return {rule: each for rule, each in every.items() if timed or rule != "SS614"}


def test_run_without_problems_has_no_findings(tmp_path):
    assert found(tmp_path, {"val": tiny.data(20, seed=1)}) == {}


def test_data_wait_is_reported_with_the_number_of_workers_needed(tmp_path, monkeypatch):
    clock = Clock()
    for module in (loop, step_log):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    parts = {"train": Rows(0.002, clock), "model": Slow(0.001, clock)}
    each = found(tmp_path, parts, timed=True, max_steps=60)["SS614"]
    evidence = each["evidence"]
    assert evidence["load_s"] == pytest.approx(0.016)  # 8 samples of 2 ms
    assert evidence["step_s"] == pytest.approx(0.001)
    assert evidence["share"] == pytest.approx(16 / 17, abs=1e-3)
    assert f"{evidence['share']:.0%} of the time was spent waiting for data" in each["message"]
    assert "workers" in each["fix"]


def seen(steps, step_s, wait_s):
    observed = Observed(nn.Linear(1, 1), None)
    observed.timed_steps = steps
    observed.data_wait_s, observed.seconds = steps * wait_s, steps * (step_s + wait_s)
    return observed


def waits_for_data(case):
    return list(ss614.find(case))


@pytest.mark.parametrize(
    ("workers", "step_s", "wait_s", "needed"),
    [(0, 0.01, 0.03, 3), (0, 0.01, 0.1, 10), (2, 0.01, 0.03, 8), (4, 0.01, 0.005, 6)],
)
def test_workers_needed_are_load_time_over_step_time(tmp_path, workers, step_s, wait_s, needed):
    """With n workers a batch is loaded in n x (step + wait)."""
    with tiny.prepare(tmp_path, {"train": Rows()}) as session:
        session.loop.plan = session.plan.replace(data_num_workers=workers)
        system = replace(session.system, cpus=16)
        case = Case(
            session.loop,
            session.task,
            seen(100, step_s, wait_s),
            system,
            is_finished=True,
            folder=tmp_path,
        )
        (each,) = waits_for_data(case)
        assert each.evidence["workers_needed"] == needed
        assert f"data.num_workers={needed}" in each.fix
        (few,) = waits_for_data(replace(case, system=replace(system, cpus=2)))
        assert "make loading cheaper" in few.fix
        assert ("data.num_workers=2" in few.fix) is (workers != 2)  # it is 2 already
        assert waits_for_data(replace(case, observed=seen(100, 0.01, 0.002))) == []
        for quiet in (seen(10, 0.01, 0.05), seen(100, 0.0002, 0.0002)):
            assert waits_for_data(replace(case, observed=quiet)) == []


def test_clipping_to_a_small_part_of_the_norm_is_reported(tmp_path):
    each = found(tmp_path, max_grad_norm=0.01)["SS117"]
    evidence = each["evidence"]
    assert evidence["clipped"] > 100
    assert f"{evidence['clipped']} of 120 steps" in each["message"]
    assert evidence["ratio"] > 5


@pytest.mark.parametrize("share", [0.0, 0.5, 0.85])
@pytest.mark.parametrize("ratio", [2.0, 8.0])
def test_clipping_is_reported_only_if_it_is_usual_and_strong(tmp_path, share, ratio):
    """The default limit is often a little below the norm of a model with random weights."""
    clipped = [number < share * 100 for number in range(100)]
    parts = {"loss": nn.L1Loss(), "model": nn.Linear(1, 1, bias=False)}
    scale = torch.tensor([[ratio] if each else [0.5] for each in clipped])
    parts["train"] = scale, torch.full((100, 1), -1e6)  # so the gradient is the input
    options = {"batch_size": 1, "epochs": None, "max_steps": 100, "max_grad_norm": 1.0}
    findings = found(tmp_path, parts, **options)
    assert ("SS117" in findings) == (share > 0.8 and ratio > 5)


def test_skipped_steps_are_not_counted_as_clipped_or_not_clipped(tmp_path):
    x = X.index_fill(0, torch.tensor([5]), torch.nan)
    options = {"epochs": 5, "max_steps": None, "batch_size": 8, "on_nonfinite": "skip"}
    parts = {"train": (x, Y)}
    run = tiny.fit(tmp_path / "run", parts, **{**options, "max_grad_norm": 0.01})
    (each,) = (each for each in run.status["findings"] if each["rule"] == "SS117")
    assert run.status["steps_taken"] == 35
    assert f"{run.status['clipped']} of 35 steps" in each["message"]


def test_loss_that_never_decreases_is_reported(tmp_path):
    each = found(tmp_path, optim={"lr": 1e-9})["SS408"]
    assert each["evidence"]["state"] in ("flat", "stuck")
    assert each["fix"].endswith(f"surestep diagnose {tmp_path / 'run'}")
    noise = torch.randint(0, 3, Y.shape, generator=torch.Generator().manual_seed(4))
    assert "SS408" not in found(tmp_path / "b", {"train": (X, noise)}, max_steps=600)


def test_noisy_loss_that_decreases_is_not_flat(tmp_path):
    assert found(tmp_path, batch_size=1, optim={"lr": 3e-3}) == {}


def test_flat_loss_is_reported_for_a_resumed_run_and_not_for_a_short_one(tmp_path):
    assert found(tmp_path, optim={"lr": 1e-9}, max_steps=60) == {}
    said = {**LONG, "optim": {"lr": 1e-9}, "max_grad_norm": "off"}
    with tiny.prepare(tmp_path / "c" / "run", {"train": (X, Y)}, **said) as one:
        next(iter(one.steps()))
        one.save()
    assert list(found(tmp_path / "c", optim={"lr": 1e-9})) == ["SS408"]


@pytest.mark.parametrize(
    ("train", "val", "said"),
    [
        ((X, Y), (X.clone(), Y.clone()), "'held' has the same 64 samples"),
        (Rows(), Rows(), "'held' has the same 64 samples"),
        ((X, Y), (X[:32], Y[:32]), "About 100% of the validation data 'held' is also in"),
        ((X, Y), (X + 1, Y), None),
    ],
    ids=["tensors", "datasets", "part", "other"],
)
def test_validation_on_the_training_data_is_reported(tmp_path, train, val, said):
    every = found(tmp_path, {"train": train, "val": {"held": val}})
    assert list(every) == ([] if said is None else ["SS605"])
    assert said is None or said in every["SS605"]["message"]


class Augmented(Rows):
    def __getitem__(self, index):
        return X[index] + 0.5 * torch.randn(4), Y[index]


def test_two_random_augmentations_of_the_data_count_as_different(tmp_path):
    assert found(tmp_path, {"train": Augmented(), "val": Rows()}) == {}


class Unused(nn.Module):
    def __init__(self, *, detached=False):
        super().__init__()
        self.body, self.head, self.spare = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(8, 3)
        self.detached = detached

    def forward(self, x):
        hidden = self.body(x)
        return self.head(hidden.detach() if self.detached else hidden)


@pytest.mark.parametrize("optim", [{"lr": 1e-2}, {"name": "sgd", "lr": 0.1, "momentum": 0.0}])
def test_layers_that_never_had_a_gradient_are_listed(tmp_path, optim):
    each = found(tmp_path, {"model": Unused(detached=True)}, optim=optim)
    layers = each["SS203"]["evidence"]["layers"]
    assert layers == ["body", "spare"]
    frozen = Unused()
    frozen.spare.requires_grad_(False)
    assert found(tmp_path / "b", {"model": frozen}, optim=optim) == {}


class Sometimes(Unused):
    """Uses a layer in a single step, between two log points."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += self.training
        hidden = self.body(x)
        return self.head(hidden) + (self.spare(hidden) if self.calls == 14 else 0)


def test_layer_used_in_a_single_step_is_not_listed(tmp_path):
    assert found(tmp_path, {"model": Sometimes()}) == {}


class Hidden(nn.Module):
    """Trains a layer that it does not register, which a checkpoint of activations hides."""

    def __init__(self, *, trains=True):
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.layers = [nn.Linear(4, 4).requires_grad_(trains)]
        self.known = [self.head]

    def forward(self, x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            x = x.clone().requires_grad_()
            return self.head(checkpoint(self.layers[0], x, use_reentrant=True))


def test_modules_in_a_plain_list_are_reported(tmp_path):
    each = found(tmp_path, {"model": Hidden()})["SS204"]
    assert each["evidence"]["attributes"] == ["layers"]
    assert found(tmp_path / "b", {"model": Hidden(trains=False)}) == {}


def test_findings_are_printed_and_stored_in_the_end_event(tmp_path, capsys):
    made = tiny.fit(
        tmp_path,
        {"train": (X, Y), "val": (X, Y)},
        logging={"progress": "plain"},
    )
    assert "SS605 leakage-by-duplicates (warning): The validation data" in capsys.readouterr().err
    end = list(made.events())[-1]
    assert [each["rule"] for each in end["findings"]] == ["SS605"]
    assert [each["rule"] for each in Run(tmp_path).status["findings"]] == [
        end["findings"][0]["rule"]
    ]


def test_data_is_checked_before_the_first_step_only(tmp_path):
    with tiny.prepare(tmp_path, {"train": (X, Y), "val": (X, Y)}) as session:
        X_before = X[0].clone()
        X[0] = 0
        list(session.steps())
        X[0] = X_before
    assert [each["rule"] for each in session.run.status["findings"]] == ["SS605"]


def test_findings_have_the_form_of_the_other_commands(tmp_path):
    made = tiny.fit(tmp_path, {"train": (X, Y), "model": Hidden()})
    (each,) = made.status["findings"]
    keys = {"rule", "name", "severity", "file", "line", "column", "message", "evidence", "fix"}
    assert keys <= set(each)
    assert (each["name"], each["column"]) == ("module-hidden-in-list-or-dict", 1)
    assert (each["file"], each["line"]) == (__file__, inspect.getsourcelines(Hidden)[1])


def test_error_of_a_rule_is_a_finding(tmp_path):
    class Broken(nn.Linear):
        def named_modules(self, *args, **kwargs):
            if self.is_done:
                raise LookupError("no modules.")  # one full stop is shown
            return super().named_modules(*args, **kwargs)

    model = Broken(4, 3)
    model.is_done = False
    with tiny.prepare(tmp_path, {"train": (X, Y), "model": model}) as session:
        list(session.steps())
        model.is_done = True
    (each,) = session.run.status["findings"]
    assert (each["rule"], each["severity"]) == ("SS204", "info")
    assert each["message"] == "This could not be checked: LookupError: no modules."


def test_ignored_rule_is_not_checked_and_the_plan_has_the_reason(tmp_path):
    parts = {"train": (X, Y), "val": (X, Y)}
    assert list(found(tmp_path, parts, max_grad_norm=1e-3)) == ["SS605", "SS117"]
    ignore = {"SS117": "we clip on purpose", "ss605": "a trial"}
    with tiny.prepare(tmp_path / "b", {"train": (X, Y)}, doctor={"ignore": ignore}) as session:
        plan = {name: (value, reason) for name, value, reason in session.plan.decisions}
    assert plan["doctor.ignore"] == (
        ("SS117", "SS605"),
        "SS117: we clip on purpose; SS605: a trial; set in Python",
    )
    assert found(tmp_path / "c", parts, max_grad_norm=1e-3, doctor={"ignore": ignore}) == {}


@pytest.mark.parametrize(
    ("code", "meant"),
    [
        ("SS171", "There is no rule 'SS171' to ignore. Did you mean 'SS"),
        ("gradients-always-clipped", "Use its code, SS117."),
        ("SS1", "There is no rule 'SS1' to ignore."),
    ],
)
def test_unknown_rule_is_an_error_before_training(tmp_path, code, meant):
    with pytest.raises(ConfigError, match=re.escape(meant)):
        tiny.fit(tmp_path, {"train": (X, Y)}, doctor={"ignore": {code: "a reason"}})
    assert not (tmp_path / "events.jsonl").exists()


def test_error_is_shown_at_once_and_written_to_the_events(tmp_path, capsys):
    with tiny.prepare(
        tmp_path,
        {"train": (X, Y), "model": Hidden()},
        **{**LONG, "logging": {"every": "10 steps", "progress": "plain"}},
    ) as session:
        for step in session.steps():
            if step.step == 10:
                assert "SS204 module-hidden-in-list-or-dict (error)" in capsys.readouterr().err
        written = [event for event in session.run.events() if event["event"] == "finding"]
    assert [(event["rule"], event["step"]) for event in written] == [("SS204", 8)]
    assert written[0]["name"] == "module-hidden-in-list-or-dict"
    assert [each["rule"] for each in session.run.status["findings"]] == ["SS204"]
    assert "SS204" not in capsys.readouterr().err


def test_second_error_of_a_rule_is_printed_at_the_end(tmp_path, capsys):
    wrong = (X[:20], Y[:20] + 7)
    parts = {"train": (X, Y), "val": {"a": wrong, "b": wrong}}
    tiny.prepare(tmp_path, parts, logging={"progress": "plain"}).close()
    text = capsys.readouterr().err
    assert [text.count(f"The {name} data has targets from 7") for name in ("a", "b")] == [1, 1]


def test_hidden_teacher_without_gradients_is_a_warning(tmp_path):
    class Taught(Hidden):
        def forward(self, x):
            with torch.no_grad():
                self.layers[0](x)
            return self.head(x)

    each = found(tmp_path, {"model": Taught()})["SS204"]
    assert each["severity"] == "warning"


def test_worst_finding_is_first(tmp_path):
    parts = {"train": (X, Y), "val": (X, Y), "model": Hidden()}
    run = tiny.fit(tmp_path, parts, **{**LONG, "max_grad_norm": 1e-3})
    found = [each for each in run.status["findings"] if each["rule"] != "SS614"]  # needs a clock
    severities = [each["severity"] for each in found]
    assert severities == ["error", "warning", "info"]
