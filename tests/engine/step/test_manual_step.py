import math
from contextlib import suppress

import pytest
import torch
from torch import nn

import surestep
from surestep.base.errors import NonFiniteError, SurestepError, TaskError
from surestep.engine.step.multi_optimizer import OptimizerSet
from surestep.record.run import Run
from tests import tiny
from tests.parts import see_log_points


def model():
    torch.manual_seed(0)
    return nn.ModuleDict({"a": nn.Linear(4, 1), "b": nn.Linear(4, 1)})


def take(run, step, **parts):
    """Take one manual step by `step`, on a batch of 8 in micro-batches of 3."""
    said = {"optimizers": dict.fromkeys("ab", surestep.Optim()), "train": (tiny.data()[0],)}
    task = surestep.Task(step=step, **{"model": model(), **said, **parts})
    with surestep.prepare(task, tiny.config(micro_batch_size=3, max_steps=2), run=run) as session:
        result = next(session.steps())
        session.loop.log.take()
        return session, result


def two_steps(run, step, **options):
    """Take two manual steps, each on a batch of 8."""
    options = {"micro_batch_size": 3, "max_steps": 2, **options}
    optimizers, train = dict.fromkeys("ab", surestep.Optim()), (tiny.data()[0],)
    task = surestep.Task(step=step, model=model(), optimizers=optimizers, train=train)
    with surestep.prepare(task, tiny.config(**options), run=run) as session:
        list(session.steps())


def train_pass(manual_step, *names, part="a"):
    for micro in manual_step.micro_batches(*names):
        manual_step.backward(manual_step.models[part](micro.args[0]).mean(), micro)


def forgets_to_step(manual_step):
    train_pass(manual_step, "a")


def does_nothing(manual_step):
    pass


def steps_without_gradients(manual_step):
    manual_step.step("a")


def misspells_the_optimizer(manual_step):
    train_pass(manual_step, "aa")


def leaves_the_loop_early(manual_step):
    for micro in manual_step.micro_batches("a"):
        manual_step.backward(manual_step.models["a"](micro.args[0]).mean(), micro)
        break
    manual_step.step("a")


def forgets_a_backward(manual_step):
    for micro in manual_step.micro_batches("a"):
        if micro.samples == 3:
            manual_step.backward(manual_step.models["a"](micro.args[0]).mean(), micro)
    manual_step.step("a")


def calls_backward_outside_the_loop(manual_step):
    last = list(manual_step.micro_batches("a"))[-1]
    manual_step.backward(manual_step.models["a"](last.args[0]).mean(), last)


def uses_a_different_micro_batch(manual_step):
    micros = list(manual_step.micro_batches("a"))
    for _ in manual_step.micro_batches("b"):
        manual_step.backward(manual_step.models["a"](micros[0].args[0]).mean(), micros[0])


def overwrites_unused_gradients(manual_step):
    train_pass(manual_step, "a")
    train_pass(manual_step, "a")


def passes_a_vector_loss(manual_step):
    for micro in manual_step.micro_batches("a"):
        manual_step.backward(manual_step.models["a"](micro.args[0]), micro)


def passes_a_float_loss(manual_step):
    for micro in manual_step.micro_batches("a"):
        manual_step.backward(1.0, micro)


def passes_a_detached_loss(manual_step):
    for micro in manual_step.micro_batches("a"):
        manual_step.backward(manual_step.models["a"](micro.args[0]).mean().detach(), micro)


def trains_the_wrong_module(manual_step):
    train_pass(manual_step, "b", part="a")
    manual_step.step("b")


def clips_twice(manual_step):
    train_pass(manual_step, "a")
    manual_step.clip("a")
    manual_step.clip("a")


@pytest.mark.parametrize(
    ("step", "sentence"),
    [
        (forgets_to_step, r"gradients of 'a' unused. Call manual_step\.step\('a'\)"),
        (does_nothing, r"updated nothing.*Known: a, b"),
        (steps_without_gradients, r"no gradients of 'a' to step by"),
        (misspells_the_optimizer, r"no optimizer called 'aa'.*'a'"),
        (leaves_the_loop_early, r"gradients of 1 of the 3 micro-batches"),
        (forgets_a_backward, r"gradients of 2 of the 3 micro-batches"),
        (calls_backward_outside_the_loop, r"Call it within that loop"),
        (uses_a_different_micro_batch, r"the current micro-batch of the loop"),
        (overwrites_unused_gradients, r"not used yet. Call manual_step\.step\('a'\) before"),
        (passes_a_vector_loss, r"one number, and got shape \(3, 1\).*loss\.mean\(\)"),
        (passes_a_float_loss, r"one number, and got float"),
        (passes_a_detached_loss, r"does not depend on any trained parameter"),
        (trains_the_wrong_module, r"No parameter got a gradient"),
        (clips_twice, r"manual_step\.clip\('a'\) was called before"),
    ],
)
def test_incomplete_manual_step_is_rejected(tmp_path, step, sentence):
    with pytest.raises(TaskError, match=sentence):
        take(tmp_path / "run", step)


def test_pass_gives_gradients_only_to_its_optimizers(tmp_path):
    seen = {}

    def step(manual_step):
        for micro in manual_step.micro_batches("a"):
            both = manual_step.models["a"](micro.args[0]) + manual_step.models["b"](micro.args[0])
            manual_step.backward(both.mean(), micro)
        seen.update({name: p.grad is None for name, p in manual_step.model.named_parameters()})
        manual_step.step("a")

    take(tmp_path / "run", step)
    assert seen == {"a.weight": False, "a.bias": False, "b.weight": True, "b.bias": True}


def test_mean_over_a_micro_batch_is_weighted_by_its_size(tmp_path):
    """Micro-batches of 3, 3 and 2 give the same gradient as all 8 at once."""
    found = {}

    def step(manual_step):
        train_pass(manual_step, "a")
        found["grad"] = manual_step.models["a"].weight.grad.clone()
        found["x"] = torch.cat([micro.args[0] for micro in manual_step.micro_batches("b")])
        finish(manual_step)

    def finish(manual_step):
        manual_step.clip("a", 1e9)
        manual_step._ready.pop("b")
        manual_step.step("a")

    take(tmp_path / "run", step)
    torch.testing.assert_close(found["grad"], found["x"].mean(0, keepdim=True))


def test_mean_over_a_micro_batch_is_weighted_by_its_items_if_the_task_counts_them(tmp_path):
    found = {}

    def step(manual_step):
        weighted, total = torch.zeros(1, 4), 0.0
        for micro in manual_step.micro_batches("a"):
            manual_step.backward(manual_step.models["a"](micro.args[0]).mean(), micro)
            weighted += micro.items * micro.args[0].mean(0)
            total += micro.items
        found["grad"] = manual_step.models["a"].weight.grad.clone()
        found["expected"] = weighted / total
        manual_step.step("a")

    take(tmp_path / "run", step, items=lambda batch: float(1 + 5 * (batch[0][:, 0] > 0).sum()))
    torch.testing.assert_close(found["grad"], found["expected"])


def test_loss_of_several_passes_of_an_optimizer_is_their_mean(tmp_path):
    def step(manual_step):
        for loss in (1.0, 3.0, 8.0):
            for micro in manual_step.micro_batches("a"):
                nothing = 0 * manual_step.models["a"](micro.args[0]).mean()
                manual_step.backward(nothing + loss, micro)
            manual_step.step("a")
        train_pass(manual_step, "b", part="b")
        manual_step.step("b")

    session, result = take(tmp_path / "run", step)
    (event,) = [event for event in session.run.events() if event["event"] == "steps"]
    assert event["logged"]["a/loss"] == [4.0]
    expected = 4.0 + event["logged"]["b/loss"][0]
    assert float(result.loss) == event["loss"][0] == pytest.approx(expected)


def test_clip_returns_the_unclipped_norm_and_step_does_not_clip_again(tmp_path):
    found = {}

    def step(manual_step):
        train_pass(manual_step, "a")
        found["norm"] = manual_step.clip("a", 0.1)
        found["after"] = nn.utils.get_total_norm(
            [p.grad for p in manual_step.models["a"].parameters()]
        )
        manual_step.step("a")

    _, result = take(tmp_path / "run", step)
    assert found["norm"] == result.grad_norm
    assert float(found["after"]) == pytest.approx(0.1, rel=1e-4)
    assert float(found["norm"]) > 0.2


@pytest.mark.parametrize(
    ("planned", "usual"),
    [({"max_grad_norm": 2.0}, 2.0), ({"clip_value": 0.5}, 0.5 * math.sqrt(5))],
)
def test_maximum_norm_of_a_clip_is_that_of_this_step_alone(tmp_path, planned, usual):
    norms = []

    def step(manual_step):
        for micro in manual_step.micro_batches("a"):
            loss = 100 * manual_step.models["a"](micro.args[0]).mean()
            manual_step.backward(loss, micro)
        if not norms:
            manual_step.clip("a", 0.1)
        manual_step.step("a")
        norms.append(
            nn.utils.get_total_norm([p.grad for p in manual_step.models["a"].parameters()])
        )

    two_steps(tmp_path, step, **planned)
    assert list(map(float, norms)) == pytest.approx([0.1, usual], rel=1e-4)


def test_passes_of_one_optimizer_are_clipped_each(tmp_path):
    norms = []

    def step(manual_step):
        for limit in (0.1, 0.2, None):
            for micro in manual_step.micro_batches("a"):
                loss = 100 * manual_step.models["a"](micro.args[0]).mean()
                manual_step.backward(loss, micro)
            if limit is not None:
                manual_step.clip("a", limit)
            manual_step.step("a")
            grads = [weight.grad for weight in manual_step.models["a"].parameters()]
            norms.append(float(nn.utils.get_total_norm(grads)))

    two_steps(tmp_path, step, max_grad_norm=2.0)
    assert norms == pytest.approx([0.1, 0.2, 2.0] * 2, rel=1e-4)


@pytest.mark.parametrize("draw", ["randn", "rand"])
def test_noise_of_a_sample_does_not_depend_on_micro_batches(tmp_path, draw):
    """It differs between the steps, their passes, and the draws in a pass."""

    def drawn(size):
        noise = [[] for _ in range(8)]  # by step, pass and draw

        def step(manual_step):
            for number, name in enumerate("ab"):
                for micro in manual_step.micro_batches(name):
                    for of_pass in (0, 1):
                        index = 4 * manual_step.index + 2 * number + of_pass
                        noise[index].append(getattr(manual_step, draw)(micro, 2))
                    outputs = manual_step.models[name](micro.args[0])
                    manual_step.backward(outputs.mean(), micro)
                manual_step.step(name)

        two_steps(tmp_path / str(size), step, micro_batch_size=size)
        return [torch.cat(parts) for parts in noise]

    whole = drawn(8)
    assert all(noise.shape == (8, 2) for noise in whole)
    assert len(torch.stack(whole).unique()) == 8 * 8 * 2
    for size in (3, 1):
        for noise, expected in zip(drawn(size), whole, strict=True):
            assert torch.equal(noise, expected)


def test_noise_of_ready_batches_differs(tmp_path):
    noise = []

    def step(manual_step):
        for name in "ab":
            for micro in manual_step.micro_batches(name):
                noise.append(manual_step.randn(micro, 2))
                outputs = manual_step.models[name](micro.args[0])
                manual_step.backward(outputs.mean(), micro)
            manual_step.step(name)

    elements = [(rows,) for rows in tiny.data()[0].split(5)]  # four batches of five rows
    task = surestep.Task(
        step=step,
        model=model(),
        train=elements,
        batched=True,
        items=lambda batch: len(batch[0]),
        optimizers=dict.fromkeys("ab", surestep.Optim()),
    )
    options = {"batch_size": 2, "micro_batch_size": 1, "max_steps": 2}
    with surestep.prepare(task, tiny.config(**options), run=tmp_path / "run") as session:
        list(session.steps())
    assert [drawn.shape for drawn in noise] == [(5, 2)] * 8
    assert len(torch.stack(noise).unique()) == 8 * 5 * 2


def test_generators_are_seeded_by_step_position_and_pass(tmp_path):
    drawn = []

    def step(manual_step):
        for name in "abb":
            for micro in manual_step.micro_batches(name):
                drawn.append(torch.rand(4))
                manual_step.backward(manual_step.models[name](micro.args[0]).mean(), micro)
            manual_step.step(name)

    two_steps(tmp_path / "run", step)
    first = torch.stack(drawn)
    assert first.shape == (2 * 3 * 3, 4)
    assert len(first.unique()) == first.numel()
    drawn.clear()
    two_steps(tmp_path / "again", step)
    assert torch.equal(torch.stack(drawn), first)


def sgd(groups):
    return torch.optim.SGD(groups, lr=0.5)


def test_skipped_step_restores_what_its_code_changed_and_logs_nothing_later(tmp_path):
    x, points = tiny.data(24)[0], []
    x[8] = torch.nan  # in step 2 of 3

    def step(manual_step):
        for micro in manual_step.micro_batches("a"):
            manual_step.backward(manual_step.models["a"](micro.args[0]).mean(), micro)
            manual_step.models["a"].weight.data.mul_(0.5)
        manual_step.log("mean", micro.args[0].mean())
        manual_step.step("a")
        train_pass(manual_step, "b", part="b")
        manual_step.step("b")

    task = surestep.Task(step=step, model=model(), train=(x,), optimizers=dict.fromkeys("ab", sgd))
    options = {"max_steps": 3, "on_nonfinite": "skip", "data": {"shuffle": False}}
    with surestep.prepare(task, tiny.config(**options), run=tmp_path / "run") as session:
        see_log_points(session, points.append)
        weights = [tiny.weights(session.model) for _ in session.steps()]
    assert torch.equal(weights[1], weights[0])
    assert not torch.equal(weights[2], weights[1])
    means = [value for point in points for value in point.logged["mean"]]
    assert means == pytest.approx([float(x[:8].mean()), None, float(x[16:].mean())])


@pytest.mark.parametrize("first", ["a", "b"])
def test_schedule_goes_on_after_a_step_that_was_undone(tmp_path, first):
    """No rate of a step that is undone, or of the one before it, counts as set by your code."""
    x, points = tiny.data(48)[0], []
    x[16] = torch.nan

    def step(manual_step):
        for name in (first, "ab".replace(first, "")):
            for micro in manual_step.micro_batches(name):
                given = micro.args[0].nan_to_num() if name == first else micro.args[0]
                manual_step.backward(manual_step.models[name](given).mean(), micro)
            manual_step.step(name)

    task = surestep.Task(step=step, model=model(), train=(x,), optimizers=dict.fromkeys("ab", sgd))
    options = {"max_steps": 6, "on_nonfinite": "skip", "data": {"shuffle": False}}
    options["schedule"] = {"name": "linear", "warmup": "0 steps", "min_lr_ratio": 0.0}
    with surestep.prepare(task, tiny.config(**options), run=tmp_path / "run") as session:
        see_log_points(session, points.append)
        list(session.steps())
    assert session.state.counts.nonfinite == 1
    rates = [rate for point in points for rate in point.logged[f"{first}/lr"]]
    assert rates == pytest.approx([0.5 * (1 - taken / 6) for taken in (0, 1, 2, 2, 3, 4)])


def test_retain_graph_allows_a_second_backward(tmp_path):
    grads = []

    def step(manual_step):
        for micro in manual_step.micro_batches("a"):
            loss = manual_step.models["a"](micro.args[0]).square().mean()
            manual_step.backward(loss, micro, retain_graph=True)
            manual_step.backward(loss, micro)
        grads.append(manual_step.models["a"].weight.grad.clone())
        manual_step.step("a")
        for micro in manual_step.micro_batches("b"):
            weight = manual_step.models["b"].weight
            manual_step.backward(
                manual_step.models["b"](micro.args[0]).square().mean(), micro, create_graph=True
            )
            assert weight.grad.requires_grad
        manual_step.step("b")

    take(tmp_path / "run", step)
    once = []

    def step_once(manual_step):
        for micro in manual_step.micro_batches("a"):
            manual_step.backward(2 * manual_step.models["a"](micro.args[0]).square().mean(), micro)
        once.append(manual_step.models["a"].weight.grad.clone())
        manual_step.step("a")

    take(tmp_path / "other", step_once)
    torch.testing.assert_close(grads[0], once[0])


@pytest.mark.parametrize("interval", [1, 100])
def test_loss_scale_does_not_change_while_gradients_are_pending(tmp_path, interval):
    """Gradients of both optimizers come from one pass; the scale grows after each good step."""

    def step(manual_step):
        for micro in manual_step.micro_batches():
            outputs = [each(micro.args[0]).mean() for each in manual_step.models.values()]
            manual_step.backward(sum(outputs), micro)
        manual_step.step("a")
        scales.append(manual_step._optimizers.scaler.get_scale())
        manual_step.step("b")
        scales.append(manual_step._optimizers.scaler.get_scale())

    scales = []
    parts = {"optimizers": dict.fromkeys("ab", surestep.Optim(name="sgd", lr=0.1))}
    net = model()
    net["b"].load_state_dict(net["a"].state_dict())
    task = surestep.Task(net, train=(tiny.data()[0],), step=step, **parts)
    scaler = {"init_scale": 64.0, "growth_interval": interval}
    said = tiny.config(max_steps=2, precision="fp16", scaler=scaler)
    with surestep.prepare(task, said, run=tmp_path / "run") as session:
        list(session.steps())
    assert scales == ([64, 128, 128, 256] if interval == 1 else [64] * 4)
    assert torch.equal(net["a"].weight, net["b"].weight)


@pytest.mark.parametrize(
    "options", [{}, {"precision": "fp16", "scaler": {"init_scale": 64.0}}], ids=["fp32", "fp16"]
)
def test_grad_equals_torch_autograd_grad_and_changes_no_grad(tmp_path, options):
    net, x = model(), torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    found = []

    def step(manual_step):
        inputs = x.clone().requires_grad_()
        outputs = manual_step.models["a"](inputs).square()
        found.append(manual_step.grad(outputs, inputs))
        assert manual_step.models["a"].weight.grad is None
        both = manual_step.grad(
            manual_step.models["a"](inputs), [inputs, manual_step.models["a"].weight]
        )
        assert [each.shape for each in both] == [(5, 4), (1, 4)]
        train_pass(manual_step, "a")
        manual_step.step("a")

    weights = {name: value.clone() for name, value in net.state_dict().items()}
    parts = {"optimizers": {"a": surestep.Optim(), "b": surestep.Optim()}}
    task = surestep.Task(net, train=(tiny.data()[0],), step=step, **parts)
    said = tiny.config(max_steps=1, **options)
    with surestep.prepare(task, said, run=tmp_path / "run") as session:
        list(session.steps())
    inputs = x.clone().requires_grad_()
    plain = nn.functional.linear(inputs, weights["a.weight"], weights["a.bias"]).square()
    (expected,) = torch.autograd.grad(plain.sum(), inputs)
    tolerance = {"rtol": 0.05, "atol": 0.01} if options else {"rtol": 0, "atol": 0}
    torch.testing.assert_close(found[0], expected, **tolerance)


def test_losses_norms_and_learning_rates_are_logged_by_name(tmp_path):
    def step(manual_step):
        for _ in range(2):
            train_pass(manual_step, "a", "b")
            manual_step.step("a")
            manual_step._ready.pop("b")
        manual_step.log("twice", torch.tensor(3.0))
        surestep.log("plain", torch.tensor(4.0))

    session, _ = take(tmp_path / "run", step)
    (event,) = (each for each in Run(tmp_path / "run").events() if each["event"] == "steps")
    logged = event["logged"]
    assert sorted(logged) == ["a+b/loss", "a/grad_norm", "a/lr", "plain", "twice"]
    assert (logged["a/lr"], logged["twice"], logged["plain"]) == ([1e-3], [3.0], [4.0])
    assert event["loss"] == pytest.approx(logged["a+b/loss"])
    assert session.plan.optimizers.keys() == {"a", "b"}


def test_optimizer_that_is_never_stepped_is_named_in_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(OptimizerSet, "STEPS_UNTIL_WARNING", 1)

    def step(manual_step):
        train_pass(manual_step, "a")
        manual_step.step("a")

    with pytest.warns(
        UserWarning, match=r"In 1 steps .* never called manual_step\.step\(\) for: b\."
    ):
        take(tmp_path / "run", step)


def test_error_in_a_manual_step_is_raised_unchanged(tmp_path):
    def step(manual_step):
        train_pass(manual_step, "a")
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        take(tmp_path / "run", step)


@pytest.mark.parametrize("on_nonfinite", ["raise", "skip"])
def test_target_network_set_in_a_manual_step_is_restored_if_a_later_loss_is_nan(
    tmp_path, on_nonfinite
):
    """With "raise" the device decides whether to restore, with "skip" the host."""

    def step(manual_step):
        train_pass(manual_step, "a")
        manual_step.step("a")
        follow(manual_step.model)
        for micro in manual_step.micro_batches("b"):
            loss = manual_step.models["b"](micro.args[0]).mean()
            manual_step.backward(loss * (math.nan if manual_step.index else 1.0), micro)
        manual_step.step("b")

    @torch.no_grad()
    def follow(net):
        followed.append(tiny.weights(net["a"]))
        net["target"].load_state_dict(net["a"].state_dict())

    followed, net = [], model()
    net["target"] = nn.Linear(4, 1).requires_grad_(False)
    sgd = surestep.Optim(name="sgd", lr=0.1)
    data = {"train": (tiny.data()[0],), "optimizers": dict.fromkeys("ab", sgd)}
    task = surestep.Task(net, step=step, **data)
    config = tiny.config(max_steps=2, on_nonfinite=on_nonfinite)
    with surestep.prepare(task, config, run=tmp_path / "run") as session:
        with suppress(NonFiniteError):
            list(session.steps())
        assert session.state.progress.steps_taken == 1
    assert not torch.equal(followed[0], followed[1])
    assert torch.equal(tiny.weights(net["target"]), followed[0])
    assert torch.equal(tiny.weights(net["a"]), followed[0])


def test_optimizer_that_a_nonfinite_step_updates_last_and_before_is_restored():
    """A critic that takes two steps in each manual step; the second loss of step 3 is NaN."""

    def step(manual_step):
        for name, bad in (("b", False), ("a", False), ("a", manual_step.index == 2)):
            for micro in manual_step.micro_batches(name):
                loss = manual_step.models[name](micro.args[0]).mean()
                manual_step.backward(loss * math.nan if bad else loss, micro)
            manual_step.step(name)

    states = []
    for last in (3, 2):
        data = {"train": (tiny.data()[0],), "optimizers": dict.fromkeys("ab", surestep.Optim())}
        task = surestep.Task(model(), step=step, **data)
        with surestep.prepare(task, tiny.config(max_steps=last), run=None) as session:
            with suppress(NonFiniteError):
                list(session.steps())
            assert session.state.progress.steps_taken == 2
            optimizers = session.state.optimizers.values()
            slots = [
                slot for each in optimizers for own in each.state.values() for slot in own.values()
            ]
            states.append([tensor.tolist() for tensor in (*session.model.parameters(), *slots)])
    assert states[0] == states[1]


def test_dict_batch_becomes_keyword_arguments(tmp_path):
    names = []

    def step(manual_step):
        for micro in manual_step.micro_batches("a"):
            names.append((micro.args, sorted(micro.kwargs), micro.targets))
            manual_step.backward(manual_step.models["a"](micro.kwargs["x"]).mean(), micro)
        manual_step.step("a")

    x, y = tiny.data()
    take(tmp_path / "run", step, train={"x": x, "y": y})
    assert names == [((), ["x", "y"], None)] * 3


def test_evaluation_without_a_loss_is_rejected(tmp_path):
    def step(manual_step):
        train_pass(manual_step, "a")
        manual_step.step("a")

    task = surestep.Task(
        model(),
        train=(tiny.data()[0],),
        step=step,
        optimizers=dict.fromkeys("ab", surestep.Optim()),
    )
    with (
        surestep.prepare(task, tiny.config(), run=tmp_path / "run") as session,
        pytest.raises(SurestepError, match="no loss to evaluate"),
    ):
        session.evaluate("train")
