import math
import subprocess
import sys
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from surestep.engine.model.precision import grad_scaler
from surestep.engine.optim.build import build_optimizer
from surestep.engine.optim.fused_adamw import FusedAdamW
from surestep.engine.optim.param_groups import make_param_groups
from surestep.engine.parallel.guards import all_finite
from surestep.engine.parallel.single import SingleProcessStrategy
from surestep.engine.state.state import WHOLE, State
from tests import tiny


def single(model=None, optimizer=None, **options):
    planned = tiny.plan({"model": model or tiny.model(), "optimizer": optimizer}, **options)
    groups = make_param_groups(planned.model, planned.plan)
    made = build_optimizer(
        planned.plan, optimizer, planned.model, groups, SingleProcessStrategy.make_optimizer
    )
    state = State(planned.model, {WHOLE: made}, grad_scaler(planned.plan))
    return SingleProcessStrategy(planned.plan, state), state


def give_gradients(model, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        drawn = torch.randn(parameter.shape, generator=generator)
        parameter.grad = (scale * drawn).to(parameter.dtype)
    return model


def gradients(model):
    return [parameter.grad for parameter in model.parameters()]


def mixed():
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3).double())


def halved():
    return tiny.model().half()


def table():
    return nn.Sequential(nn.Embedding(4, 4, sparse=True), nn.Linear(4, 3))


@pytest.mark.parametrize("max_norm", [None, 0.1, 1e6])
def test_gradient_that_has_a_row_twice_is_clipped_as_its_sum(max_norm):
    models = [table(), table()]
    models[1].load_state_dict(models[0].state_dict())
    models[1][0].sparse = False
    for model in models:
        (model(torch.tensor([1, 1, 3])).square().sum() * 9).backward()
    plain = list(models[1].parameters())
    expected = torch.nn.utils.clip_grad_norm_(plain, max_norm or math.inf)
    found = single(models[0], max_grad_norm=max_norm or "off", optim={"name": "sgd"})[0]
    torch.testing.assert_close(found.clip_grad_norm().total, expected)
    for a, b in zip(gradients(models[0]), gradients(models[1]), strict=True):
        torch.testing.assert_close(a.to_dense(), b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_norms_of_tensors_of_two_dtypes_are_in_the_wider_one(dtype):
    tensors = [torch.full((2,), 3.0), torch.full((4,), 1.0).half(), torch.ones(9, dtype=dtype)]
    norms = single()[0].measure_norms(tensors)
    assert norms.dtype is dtype
    assert norms.tolist() == pytest.approx([18**0.5, 2.0, 3.0])


@pytest.mark.parametrize(
    "build", [tiny.model, mixed, halved], ids=["one dtype", "two dtypes", "16 bits"]
)
@pytest.mark.parametrize("max_norm", [0.1, 1e6])
def test_clipping_is_bitwise_identical_to_torch(build, max_norm):
    torch.manual_seed(0)
    model = give_gradients(build())
    torch.manual_seed(0)
    plain = give_gradients(build())
    expected = torch.nn.utils.clip_grad_norm_(plain.parameters(), max_norm)
    found = single(model, max_grad_norm=max_norm)[0].clip_grad_norm()
    assert float(found.total) == pytest.approx(float(expected), rel=1e-6)
    assert found.total.dtype is expected.dtype
    for a, b in zip(gradients(model), gradients(plain), strict=True):
        assert torch.equal(a, b)


def test_norm_is_computed_without_clipping():
    model = give_gradients(tiny.model())
    norm = single(model, max_grad_norm="off")[0].clip_grad_norm()
    plain = give_gradients(tiny.model())
    assert all(map(torch.equal, gradients(model), gradients(plain)))
    assert float(norm.total) > 1
    assert norm.names == [name for name, _ in model.named_parameters()]


def test_clip_value_clips_each_element():
    model = give_gradients(tiny.model())
    plain = give_gradients(tiny.model())
    single(model, clip_value=0.2)[0].clip_grad_norm()
    torch.nn.utils.clip_grad_value_(plain.parameters(), 0.2)
    assert all(map(torch.equal, gradients(model), gradients(plain)))


def test_parameters_without_a_gradient_are_excluded_from_the_norm():
    model = give_gradients(tiny.model())
    model[0].weight.grad = None
    norm = single(model)[0].clip_grad_norm()
    assert norm.names == ["0.bias", "3.weight", "3.bias"]
    assert len(norm.per_parameter) == 3


@pytest.mark.parametrize("items", [1.0, 3.0, 7.5])
def test_backward_differentiates_the_sum_divided_by_items(items):
    model, plain = tiny.model(), tiny.model()
    (x, y), strategy = tiny.data(), single(model)[0]
    for divisor in (2.0, items, items):  # of one step after another
        strategy.backward(nn.functional.cross_entropy(model(x), y, reduction="sum"), divisor)
        (nn.functional.cross_entropy(plain(x), y, reduction="sum") / divisor).backward()
    for a, b in zip(gradients(model), gradients(plain), strict=True):
        torch.testing.assert_close(a, b)


GOOD, BAD = torch.tensor(1.0), torch.tensor(math.inf)


def take_step(parallel, state, loss, norm):
    before = tiny.weights(state.model)
    give_gradients(state.model)
    outcome = parallel.step(loss, norm)
    return not torch.equal(tiny.weights(state.model), before), outcome


@pytest.mark.parametrize(("loss", "norm"), [(BAD, GOOD), (GOOD, BAD), (GOOD, BAD * 0)])
def test_device_guard_skips_all_steps_after_a_nonfinite_one(loss, norm):
    parallel, state = single()
    assert take_step(parallel, state, GOOD, GOOD)[0]
    assert not take_step(parallel, state, loss, norm)[0]
    skipped, outcome = take_step(parallel, state, GOOD, GOOD)
    assert not skipped
    assert bool(torch.isnan(outcome.nonfinite_flag))


def test_skipped_step_does_not_change_the_optimizer_state():
    parallel, state = single()
    take_step(parallel, state, GOOD, GOOD)
    first = next(iter(state.optimizer.state.values()))
    kept = {name: value.clone() for name, value in first.items()}
    take_step(parallel, state, BAD, GOOD)
    assert all(torch.equal(kept[name], value) for name, value in first.items())


@pytest.mark.parametrize(
    "parts",
    [{"on_nonfinite": "skip"}, {"optimizer": lambda groups: torch.optim.SGD(groups, lr=0.1)}],
    ids=["skip", "own optimizer"],
)
def test_host_guard_skips_only_the_nonfinite_step(parts):
    parallel, state = single(**parts)
    assert not take_step(parallel, state, GOOD, BAD)[0]
    took, outcome = take_step(parallel, state, GOOD, GOOD)
    assert took
    assert outcome == (True, None, False, False)


def scaled_step(parallel, state, loss, scale=1.0):
    give_gradients(state.model, scale=scale * state.scaler.get_scale())
    state.scaler.scale(loss)
    before = tiny.weights(state.model)
    parallel.unscale()
    outcome = parallel.step(loss, parallel.clip_grad_norm().total)
    return not torch.equal(tiny.weights(state.model), before), outcome


def test_overflow_skips_the_step_and_halves_the_loss_scale():
    parallel, state = single(precision="fp16", scaler={"init_scale": 8.0})
    took, outcome = scaled_step(parallel, state, GOOD, scale=math.inf)
    assert (took, outcome.overflow, outcome.nonfinite) == (False, True, False)
    assert state.scaler.get_scale() == 4.0
    assert scaled_step(parallel, state, GOOD)[0]


def test_loss_scale_of_one_is_still_an_overflow():
    parallel, state = single(precision="fp16", scaler={"init_scale": 2.0})
    _, outcome = scaled_step(parallel, state, GOOD, scale=math.inf)
    assert (outcome.overflow, state.scaler.get_scale()) == (True, 1.0)


@pytest.mark.parametrize(("updates", "scale"), [(False, 8.0), (True, 16.0)])
def test_loss_scale_grows_only_if_the_step_updates_it(updates, scale):
    """Others of the step may still have gradients with the old one."""
    parallel, state = single(precision="fp16", scaler={"init_scale": 8.0, "growth_interval": 1})
    give_gradients(state.model, scale=8.0)
    state.scaler.scale(GOOD)
    assert parallel.step(GOOD, GOOD, updates_scale=updates).took_step
    assert state.scaler.get_scale() == scale


@pytest.mark.parametrize(("value", "finite"), [(1e300, True), (math.inf, False), (math.nan, False)])
def test_value_beyond_fp32_is_finite(value, finite):
    assert all_finite(GOOD, torch.tensor(value, dtype=torch.float64)) is finite


def test_nonfinite_loss_is_not_an_overflow():
    parallel, state = single(precision="fp16", scaler={"init_scale": 8.0})
    took, outcome = scaled_step(parallel, state, BAD, scale=math.inf)
    assert (took, outcome.overflow, outcome.nonfinite) == (False, False, True)
    assert state.scaler.get_scale() == 8.0


def test_loss_scale_below_one_counts_as_nonfinite():
    parallel, state = single(precision="fp16", scaler={"init_scale": 1.0})
    _, outcome = scaled_step(parallel, state, GOOD, scale=math.inf)
    assert outcome.nonfinite
    assert state.scaler.get_scale() == 1.0


def state_after_steps(kind, build, grads, found_inf=None):
    """Weights and state after steps on gradients from these seeds."""
    torch.manual_seed(0)
    model = build()
    first, *rest = model.parameters()
    groups = [{"params": [first], "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = kind(groups, lr=0.1, fused=True)
    for number, seeds in enumerate(grads):
        give_gradients(model, seeds)
        if seeds % 2:
            first.grad = None
        optimizer.param_groups[0]["lr"] = 0.1 / (number + 1)
        if found_inf is not None:
            optimizer.found_inf, optimizer.grad_scale = torch.tensor(found_inf[number]), None
        optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
    state = [each for slots in optimizer.state_dict()["state"].values() for each in slots.values()]
    return [tiny.weights(model), *state]


@pytest.mark.parametrize("build", [tiny.model, mixed], ids=["one dtype", "two dtypes"])
@pytest.mark.parametrize("found_inf", [None, [0.0, 1.0, 0.0, 1.0, 0.0]], ids=["plain", "skipping"])
def test_fused_adamw_is_bitwise_identical_to_torch(build, found_inf):
    grads = [1, 3, 2, 4, 5]
    ours, torchs = (
        state_after_steps(kind, build, grads, found_inf) for kind in (FusedAdamW, torch.optim.AdamW)
    )
    assert len(ours) == len(torchs) > 1
    assert all(map(torch.equal, ours, torchs))


def test_fused_adamw_runs_its_hooks_once_a_step():
    model = give_gradients(tiny.model())
    optimizer = FusedAdamW(model.parameters(), lr=0.1, fused=True)
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    for _ in range(3):
        optimizer.step()
    assert seen == ["before", "after"] * 3


def test_fused_adamw_accepts_a_closure():
    model = give_gradients(tiny.model())
    optimizer = FusedAdamW(model.parameters(), lr=0.1, fused=True)
    assert [optimizer.step(lambda: 5.0) for _ in range(2)] == [5.0, 5.0]


FIRST_STEP = """
import sys, torch
import surestep
net = torch.nn.Linear(2, 2)
rows = (torch.randn(8, 2), torch.zeros(8).long())
task = surestep.Task(net, torch.nn.CrossEntropyLoss(), train=rows)
config = surestep.Config.from_options({"max_steps": 1, "batch_size": 4})
surestep.Trainer(task, config, run="run").fit()
named = {"sympy", "torch._dynamo", "torch.utils.flop_counter", "triton"}
print(sorted(named & set(sys.modules)))
"""


def test_first_step_imports_no_compiler_and_no_profiler(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FIRST_STEP], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


class Watched(Tensor):
    seen: ClassVar[list[object]] = []

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        cls.seen.append(function)
        return super().__torch_function__(function, types, args, kwargs or {})


def test_loss_of_a_tensor_subclass_uses_its_own_backward():
    made, _ = single(nn.Linear(1, 1, bias=False))
    loss = (made.parameters[0].sum() * 3.0).as_subclass(Watched)
    made.backward(loss, 2.0)
    assert made.parameters[0].grad.item() == 1.5
    assert torch.autograd.backward in Watched.seen
