"""The comparer names the first step and tensor of two runs that differ; it tries each kind."""

import math
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from itertools import islice

import pytest
import torch
from torch import nn

import surestep
from surestep.base.errors import ConfigError
from surestep.engine.model.precision import torch_settings
from surestep.engine.step.part import Functions
from surestep.laws.compare import compare_records, compare_runs, compare_states
from surestep.laws.record import (
    Place,
    RunRecord,
    attach_recorder,
    record_state,
    record_steps,
)
from surestep.trainer.build import build
from surestep.trainer.planning import plan_task
from tests.laws.support.manual_step_tasks import wgan_task
from tests.laws.support.tasks import Augmented, rows, session_of, with_batchnorm

STEPS = 4


IN_ORDER = (("data.shuffle", False),)


@dataclass(frozen=True)
class Planted:
    """Trains from the start, with a function that changes something at one moment of step 3."""

    moment: str = ""
    change: object = None
    data: object = None
    more: tuple = ()

    def __call__(self, keep=None):
        return self.train(partial(record_steps, steps=STEPS, keep=keep))

    def train(self, use):
        """Return what a function of the loop at its start returns."""
        data = rows(32) if self.data is None else self.data()
        task = surestep.Task(with_batchnorm(), loss="multiclass", train=data)
        options = {"batch_size": 8, "micro_batch_size": 4, "device": "cpu", "max_steps": 20}
        options |= {"optim.name": "adamw", "optim.lr": 0.01, **dict(self.more)}
        config = surestep.Config().replace_options(options)
        with ExitStack() as settings:
            planned = plan_task(task, config)
            settings.enter_context(torch_settings(planned.plan))
            loop = build(planned, settings, (), fresh=True).loop
            parts = [Functions("planted", **{self.moment: self._at_step_3})] if self.moment else []
            loop.attach(parts, notify=lambda text: None)
            return use(loop)

    def _at_step_3(self, state, *rest):
        if state.progress.step == (3 if self.moment == "on_step" else 2):
            self.change(state, *rest)


def flip_bit(tensor):
    tensor.detach().view(torch.int32).view(-1)[0] ^= 1


def change_weight(state, result):
    flip_bit(state.model[2].weight)


def change_buffer(state, result):
    state.model[0][1].running_var[1] += 1


def change_moment(state, result):
    flip_bit(state.optimizer.state[state.model[2].bias]["exp_avg_sq"])


def change_gradient(state):
    state.model[2].weight.grad.mul_(1 + 1e-6)


def change_data(state, batch):
    batch.micro_batches[1].args[0][0, 0] += 1


def change_loss(state, result):
    result.loss_sum += 1


def change_plateau(state, result):
    state.plateau.bad += 1


def other_order():
    x, y = rows(32)
    order = torch.arange(32).flip(0)
    return x[order], y[order]


CASES = {
    "a weight": (Planted("on_step", change_weight), (3, "parameters", "2.weight")),
    "a buffer": (Planted("on_step", change_buffer), (3, "buffers", "0.1.running_var")),
    "a moment of the optimizer": (
        Planted("on_step", change_moment),
        (3, "optimizer state", "model/2.bias/exp_avg_sq"),
    ),
    "a scaled gradient": (Planted("on_backward", change_gradient), (3, "gradients", "2.weight")),
    "the data": (
        Planted("on_batch", change_data),
        (3, "data", "input of micro-batch 2, tensor 1"),
    ),
    "a loss": (Planted("on_step", change_loss), (3, "loss", "sum over the items")),
    "a count": (Planted("on_step", change_plateau), (3, "other state", "plateau.bad")),
    "another order": (Planted(more=(("seed", 1),)), (1, "sample indices", "indices")),
    "other data": (Planted(data=other_order), (1, "data", "input of micro-batch 1, tensor 1")),
    "another seed": (
        Planted(more=(("seed", 1), *IN_ORDER)),
        (1, "random state", "torch's generator 0 before micro-batch 1"),
    ),
    "another rate": (
        Planted(more=(("optim.lr", 0.02),)),
        (1, "learning rate", "model, group decay"),
    ),
}


@pytest.fixture(scope="module")
def plain():
    return Planted()()


@pytest.mark.parametrize("name", CASES)
def test_comparer_names_the_first_step_and_tensor(name, plain):
    planted, place = CASES[name]
    first = Planted(more=IN_ORDER)() if name == "another seed" else plain
    found = compare_records(first, planted())
    assert found.place == place
    assert place[2] in str(found)


def test_equal_runs_have_no_difference(plain):
    assert compare_runs(Planted(), Planted()) is None
    assert len(plain.steps) == STEPS + 1
    assert set(plain.steps[1].values) >= {"sample indices", "data", "random state", "outputs"}


def take_steps(loop):
    with closing(loop.steps()) as steps:
        for _ in islice(steps, STEPS):
            pass
        return record_state(loop.state)


def test_recording_changes_no_number(plain):
    unrecorded = Planted().train(take_steps).steps[0].values
    recorded = plain.steps[-1].values
    assert {kind: recorded[kind] for kind in unrecorded} == unrecorded


def test_gradient_scaled_by_less_than_its_precision_is_the_same():
    planted = Planted("on_backward", lambda state: state.model[2].weight.grad.mul_(1 + 1e-9))
    assert compare_runs(Planted(), planted) is None


def test_small_difference_is_within_rounding_and_a_large_one_is_not():
    small = compare_runs(Planted(), Planted("on_backward", change_gradient))
    large = compare_runs(Planted(), Planted("on_step", change_buffer))
    assert (small.is_rounding, large.is_rounding) == (True, False)
    assert 0 < small.largest < 1e-5
    assert large.largest == pytest.approx(1)
    assert "within rounding" in str(small)
    assert "more than rounding" in str(large)


def test_dataset_that_draws_from_generators_records_the_same():
    planted = Planted(data=lambda: Augmented(32))
    assert compare_runs(planted, planted) is None


def test_run_that_differs_from_itself_is_named():
    numbers = iter(range(100))
    planted = Planted("on_step", lambda state, result: change_all(state, next(numbers)))
    found = compare_runs(Planted(), planted)
    assert found.unstable == "the second run"
    assert "repeated" in str(found)


def change_all(state, number):
    with torch.no_grad():
        state.model[2].weight += number + 1


def test_shorter_run_differs_in_its_number_of_steps(plain):
    found = compare_records(plain, RunRecord(plain.steps[:3]))
    assert found.place == (3, "steps", "number")
    assert "only the first run" in str(found)


def test_record_of_another_process_is_compared_as_json():
    place = Place(3, "buffers", "0.1.running_var")
    one, other = Planted()(place), Planted("on_step", change_buffer)(place)
    found = compare_records(*(RunRecord.from_json(one.to_json()) for one in (one, other)))
    assert found == compare_records(one, other)
    assert found.changed == 1


def states(*values, dtype=torch.float32):
    for value in values:
        model = nn.Linear(1, 1).to(dtype)
        model.register_buffer("value", torch.as_tensor(value, dtype=dtype))
        with torch.no_grad():
            model.weight.zero_()
            model.bias.zero_()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        yield surestep.State(
            model, {"model": optimizer}, torch.amp.GradScaler("cpu", enabled=False)
        )


def test_nan_is_equal_to_the_same_nan():
    assert compare_states(*states(math.nan, math.nan)) is None


def test_zeros_of_both_signs_differ_within_rounding():
    found = compare_states(*states(0.0, -0.0))
    assert (found.changed, found.largest, found.is_rounding) == (1, 0, True)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_value_that_is_not_finite_is_no_rounding(value):
    found = compare_states(*states([1.0, 2.0], [1.0, value]))
    assert (found.changed, found.is_rounding) == (1, False)


def test_dtypes_and_shapes_are_compared():
    (one,), (other,) = states(1.0), states(1.0, dtype=torch.float64)
    found = compare_states(one, other)
    assert "float32" in str(found)
    assert "float64" in str(found)
    found = compare_states(*states([1.0], [1.0, 2.0]))
    assert found.place.name == "value"
    assert "(1,)" in str(found)


def test_state_has_a_place_at_its_step():
    (one,) = states(1.0)
    assert record_state(one).steps[0].step == 0


def test_steps_below_one_are_rejected():
    with pytest.raises(ConfigError, match=r"steps=0 .* Set 1 or more"):
        record_steps(None, 0)


def test_rate_of_an_optimizer_is_recorded_in_the_steps_of_its_updates(folder):
    """After a resume, one that waits has the rate of its next update, not of the last one."""
    with (
        session_of(wgan_task(), folder(), max_steps=6, batch_size=8) as session,
        attach_recorder(session.loop) as recorder,
    ):
        assert len(list(session.steps())) == 6
    by_step = [
        {name.partition(",")[0] for name in step.values.get("learning rate", {})}
        for step in recorder.record.steps[1:]
    ]
    assert len(by_step) == 6
    assert by_step[0] == {"critic"}
    assert {"critic", "generator"} in by_step
