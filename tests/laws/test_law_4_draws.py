"""Law 4: what callbacks and custom optimizers draw changes nothing else."""

import random
from contextlib import suppress

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import surestep
from surestep.base.errors import Preempted
from surestep.engine.optim.registry import BUILT_IN
from surestep.engine.profile.profiler import Profile
from surestep.engine.step.callback import HOOKS
from surestep.tracking.graph import WriteGraph
from surestep.tracking.histograms import RecordHistograms
from tests import tiny
from tests.laws.support.registry_entries.optimizers import ENTRIES
from tests.laws.support.tasks import assert_same
from tests.needs import needs

STEPS = 12
MOMENTS = [name for name in HOOKS if name != "on_exception"]
DRAWS = {
    "torch": lambda shape: 0.01 * torch.randn(shape),
    "numpy": lambda shape: torch.from_numpy(0.01 * np.random.standard_normal(shape)).float(),
    "python": lambda shape: torch.full(shape, 0.01 * random.gauss(0.0, 1.0)),
}


class Langevin(torch.optim.SGD):
    """Adds noise to the parameters, from a step on."""

    def __init__(self, parameters, draw, first_step=1):
        super().__init__(parameters, lr=0.05)
        self.draw, self.first_step = draw, first_step

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
            if group["steps"] >= self.first_step:
                for parameter in group["params"]:
                    parameter.data.add_(self.draw(parameter.shape))


def draw_all():
    return torch.rand(3).tolist(), np.random.randn(), random.gauss(0.0, 1.0)


def drawing(moments, first_step=0):
    """Make a callback that draws in some hooks, and notes what it draws, from a step on."""

    class Drawing(surestep.Callback):
        def __init__(self):
            self.drawn = []

        def draw(self, state, *_):
            if state.progress.step >= first_step:
                self.drawn.append((state.progress.step, draw_all()))

    for moment in moments:
        setattr(Drawing, moment, Drawing.draw)
    Drawing.__qualname__ = " ".join(moments)  # what it draws depends on its name
    return Drawing()


class Pause(surestep.Callback):
    def on_step(self, state, result):
        return surestep.Request.PAUSE if result.step == 7 else None


def fit(folder, callbacks=(), **parts):
    task = tiny.task(val=tiny.data(), **{"model": tiny.model(dropout=0.2), **parts})
    config = tiny.config(max_steps=STEPS, validation={"every": "5 steps"})
    with suppress(Preempted):
        surestep.Trainer(task, config, run=folder, callbacks=list(callbacks)).fit()
    return task.model.state_dict()


def langevin(name, first_step=1):
    return lambda parameters: Langevin(parameters, DRAWS[name], first_step)


def check_callback(folder, callback, optimizer):
    alone = fit(folder / "alone", optimizer=optimizer)
    random.seed(3), np.random.seed(3)
    assert_same(alone, fit(folder / "watched", [callback], optimizer=optimizer))
    assert callback.drawn


@pytest.mark.parametrize("first_step", [1, 5])
@pytest.mark.parametrize("name", DRAWS)
def test_draws_of_callbacks_do_not_change_those_of_an_optimizer(tmp_path, name, first_step):
    check_callback(tmp_path, drawing(MOMENTS, first_step - 1), langevin(name, first_step))


@pytest.mark.parametrize("moment", MOMENTS)
def test_draws_of_a_hook_do_not_change_those_of_an_optimizer(tmp_path, moment):
    check_callback(tmp_path, drawing([moment]), langevin("numpy", 5))


@pytest.mark.parametrize("first_step", [1, 5, 9])
@pytest.mark.parametrize("name", DRAWS)
def test_draws_of_an_optimizer_resume(tmp_path, name, first_step):
    optimizer = langevin(name, first_step)
    alone = fit(tmp_path / "alone", optimizer=optimizer)
    fit(tmp_path / "half", [Pause()], optimizer=optimizer)
    random.seed(3), np.random.seed(3)
    assert_same(alone, fit(tmp_path / "half", optimizer=optimizer))


def test_draws_of_hooks_of_an_optimizer_resume(tmp_path):
    def optimizer(parameters):
        made = torch.optim.SGD(parameters, lr=0.05)

        def add_noise(*_):
            for parameter in made.param_groups[0]["params"]:
                parameter.data.add_(DRAWS["numpy"](parameter.shape))

        made.register_step_post_hook(add_noise)
        return made

    alone = fit(tmp_path / "alone", optimizer=optimizer)
    fit(tmp_path / "half", [Pause()], optimizer=optimizer)
    assert_same(alone, fit(tmp_path / "half", optimizer=optimizer))


def test_no_two_steps_of_custom_optimizers_draw_the_same(tmp_path):
    drawn = []

    def draw(shape):
        drawn.extend((torch.rand(()).item(), np.random.rand(), random.random()))
        return torch.zeros(shape)

    def step(manual_step):
        for part in ("a", "b", "a"):
            for micro_batch in manual_step.micro_batches(part):
                x, y = micro_batch.args
                manual_step.backward(F.cross_entropy(manual_step.models[part](x), y), micro_batch)
            manual_step.step(part)

    net = nn.ModuleDict({part: nn.Linear(4, 3, bias=False) for part in "ab"})
    data, optimizers = tiny.data(), dict.fromkeys("ab", lambda group: Langevin(group, draw))
    task = surestep.Task(net, train=data, step=step, optimizers=optimizers)
    surestep.Trainer(task, tiny.config(max_steps=2), run=tmp_path / "run").fit()
    assert len(set(drawn)) == len(drawn) == 2 * 3 * 3


@pytest.mark.parametrize("first_step", [0, 4, 7, 9])  # the run pauses after step 7
def test_draws_of_a_callback_depend_on_the_step_only(tmp_path, first_step):
    moments = ["on_batch", "on_backward", "on_step"]
    alone, half, resumed = (drawing(moments, first_step) for _ in range(3))
    fit(tmp_path / "alone", [alone])
    random.seed(3), np.random.seed(3)
    fit(tmp_path / "half", [drawing(HOOKS), half, Pause()])
    fit(tmp_path / "half", [resumed])
    assert half.drawn + resumed.drawn == alone.drawn
    numbers = [number for _, (_, *drawn) in alone.drawn for number in drawn]
    assert len(set(numbers)) == len(numbers)


def test_calls_of_a_hook_in_one_step_draw_different_numbers(tmp_path):
    callback, config = drawing(["on_save"]), tiny.config()
    with surestep.prepare(tiny.task(), config, run=tmp_path, callbacks=[callback]) as session:
        steps = session.steps()
        for _ in range(2):
            next(steps)
            for _ in range(3):
                session.save()
    numbers = [number for _, drawn in callback.drawn for number in (*drawn[0], *drawn[1:])]
    assert len(callback.drawn) >= 6
    assert len(set(numbers)) == len(numbers)


def test_callbacks_of_one_class_draw_different_numbers(tmp_path):
    first = drawing(["on_step"])
    second = type(first)()
    fit(tmp_path / "run", [first, second])
    assert not {str(drawn) for _, drawn in first.drawn} & {str(drawn) for _, drawn in second.drawn}


@pytest.mark.parametrize("first_step", [0, 4])
def test_draws_of_a_callback_do_not_change_those_of_the_program(tmp_path, first_step):
    moments = ["on_start", "on_batch", "on_backward", "on_step", "on_log"]
    drawn = []
    for callbacks in ([], [drawing(moments, first_step)]):
        random.seed(3), np.random.seed(3)
        config = tiny.config(max_steps=STEPS)
        run = tmp_path / str(len(callbacks))
        with surestep.prepare(tiny.task(), config, run=run, callbacks=callbacks) as session:
            drawn.append([draw_all() for _ in session.steps()])
    assert drawn[0] == drawn[1]


def states():
    return torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())


def poisoned(function, called=None, *, parts=slice(None)):
    """Return a function that fails if it draws from a global generator, and notes its calls."""

    def checked(*args, **options):
        before = states()[parts]
        returned = function(*args, **options)
        assert states()[parts] == before, function
        if called is not None:
            called.add(function)
        return returned

    return checked


@pytest.mark.parametrize("name", BUILT_IN)
def test_optimizers_by_name_draw_nothing(tmp_path, name):
    if name.endswith("8bit"):
        needs("bitsandbytes")
    entry = ENTRIES[name]
    config = surestep.Config(
        max_steps=3, batch_size=8, logging={"progress": "quiet"}, **entry.options
    )
    parts = slice(1, None) if name == "lbfgs" else slice(None)  # which calls the model
    with surestep.prepare(surestep.Task(**entry.parts()), config, run=tmp_path / "r") as session:
        for optimizer in session.state.optimizers.values():
            optimizer.step = poisoned(optimizer.step, parts=parts)
        assert len(list(session.steps())) == 3


def test_callbacks_of_surestep_draw_nothing(tmp_path, monkeypatch):
    needs("tensorboard")
    called = set()
    for kind in (Profile, WriteGraph, RecordHistograms):
        for hook in set(HOOKS) & vars(kind).keys():
            monkeypatch.setattr(kind, hook, poisoned(vars(kind)[hook], called))
    logging = {"every": "3 steps", "histograms": "3 steps", "graph": True, "progress": "quiet"}
    config = surestep.Config(max_steps=STEPS, batch_size=8, logging=logging, profile="3:5")
    surestep.Trainer(tiny.task(), config, run=tmp_path / "r").fit()
    assert len(called) > 4


def test_training_draws_nothing_from_the_generators_of_the_program(tmp_path):
    """Those of torch are seeded for each micro-batch, the others only if something draws."""
    options = {"validation": {"every": "3 steps"}, "checkpoint": {"every": "4 steps"}}
    config = tiny.config(max_steps=STEPS, average={"kind": "ema", "decay": 0.9}, **options)
    trainer = surestep.Trainer(tiny.task(val=tiny.data()), config, run=tmp_path / "r")
    poisoned(trainer.fit, parts=slice(1, None))()
