from contextlib import nullcontext

import pytest
import torch
from torch import nn

from surestep.base.errors import NonFiniteError
from surestep.engine.model.preserve import BufferSnapshot
from surestep.engine.modes import TrainModes
from tests import tiny
from tests.parts import see_log_points

X, Y = tiny.data()


class OwnTrain(nn.Module):
    """Overrides train() to keep its backbone in eval mode."""

    def __init__(self):
        super().__init__()
        self.backbone, self.head = nn.BatchNorm1d(4), nn.Linear(4, 3)

    def train(self, mode=True):
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, x):
        return self.head(self.backbone(x))


class Counting(nn.Module):
    """Replaces its buffer by a new tensor, or changes it in place."""

    def __init__(self, replace):
        super().__init__()
        self.replace = replace
        self.inner = tiny.model()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        if self.training:
            if self.replace:
                self.seen = self.seen + len(x)
            else:
                self.seen += len(x)
        return self.inner(x)


class Growing(nn.Module):
    """A buffer that grows with the longest batch, as in rotary embeddings."""

    def __init__(self):
        super().__init__()
        self.inner = tiny.model()
        self.register_buffer("table", torch.zeros(1), persistent=False)

    def forward(self, x):
        if len(self.table) < len(x):
            self.table = torch.arange(len(x), dtype=torch.float32)
        return self.inner(x) + 0 * self.table[: len(x), None]


def nan_loss_at(step):
    """A loss that is NaN at one step of training."""
    count = iter(range(-2, 1000))

    def loss(outputs, targets):
        value = nn.functional.cross_entropy(outputs, targets)
        return value * torch.nan if outputs.requires_grad and next(count) == step - 3 else value

    return loss


def session_of(tmp_path, parts, **options):
    return tiny.prepare(tmp_path / "run", parts, **options)


def test_step_result_describes_the_step(tmp_path):
    with session_of(tmp_path, {}, optim={"lr": 0.5}, micro_batch_size=3) as session:
        before = tiny.weights(session.model)
        result = next(session.steps())
        assert (result.step, result.epoch, result.items, result.samples) == (1, 0, 8, 8)
        assert result.lr == 0.5
        assert bool(result.took_step)
        assert result.progress_before.step == 0
        assert float(result.loss) > 0
        assert not torch.equal(tiny.weights(session.model), before)


def test_gradient_norm_is_reported_before_clipping(tmp_path):
    with session_of(tmp_path, {}, max_grad_norm=1e-3) as session:
        result = next(session.steps())
        grads = [parameter.grad for parameter in session.model.parameters()]
        assert float(torch.nn.utils.get_total_norm(grads)) == pytest.approx(1e-3, rel=1e-3)
        assert float(result.grad_norm) > 0.01


def test_batch_without_items_updates_nothing_and_has_a_nan_loss(tmp_path):
    y = Y.clone()
    y[8:16] = -100
    with session_of(tmp_path, {"train": (X, y)}, data={"shuffle": False}) as session:
        steps = session.steps()
        next(steps)
        before = tiny.weights(session.model)
        result = next(steps)
        assert torch.equal(tiny.weights(session.model), before)
        assert not bool(result.took_step)
        assert torch.isnan(result.loss)
        assert torch.isnan(result.grad_norm)
        assert session.state.counts.no_items == 1
        assert session.state.progress[:2] == (2, 1)


def test_train_modes_follow_the_train_method_of_the_model():
    model = OwnTrain()
    modes = TrainModes(model)
    assert (model.training, model.backbone.training) == (True, False)
    wanted = dict(modes.wanted)
    assert (wanted[model], wanted[model.backbone], wanted[model.head]) == (True, False, True)


def test_modules_kept_in_eval_mode_stay_there_in_training(tmp_path):
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))
    parts = {"model": model, "keep_eval": [model[0]], "val": (X, Y)}
    with session_of(tmp_path, parts) as session:
        seen = []
        model[0].register_forward_pre_hook(lambda module, _: seen.append(module.training))
        for _ in session.steps():
            session.evaluate()
    assert seen == [False] * len(seen) != []
    assert model[0].running_mean.tolist() == [0, 0, 0, 0]


def test_train_mode_is_restored_if_the_user_changes_it_between_steps(tmp_path):
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))
    with session_of(tmp_path, {"model": model}) as session:
        for _ in session.steps():
            model.eval()
        assert model[0].num_batches_tracked == 6


@pytest.mark.parametrize("replace", [False, True], ids=["in place", "new tensor"])
@pytest.mark.parametrize("options", [{}, {"on_nonfinite": "skip"}], ids=["device", "host"])
def test_buffers_are_restored_when_a_step_is_skipped(tmp_path, replace, options):
    model = Counting(replace)
    parts = {"model": model, "loss": nan_loss_at(2), "loss_is_separable": False}
    heard = (
        pytest.raises(NonFiniteError) if not options else nullcontext()
    )  # raised on close at the latest
    with heard, session_of(tmp_path, parts, **options) as session:
        steps = session.steps()
        next(steps)
        assert float(model.seen) == 8
        result = next(steps)
        assert not bool(result.took_step)
        assert float(model.seen) == 8


def test_growing_buffer_is_supported(tmp_path):
    sizes = ((X[:12], Y[:12]), (X, Y))
    with session_of(tmp_path, {"model": Growing()}) as session:
        taken = [bool(session.train_step([batch]).took_step) for batch in sizes]
    assert taken == [True, True]


def test_buffer_snapshot_finds_the_buffers_of_a_module():
    norm = nn.BatchNorm1d(2)
    names = [name for _, name in BufferSnapshot(norm).slots]
    assert names == ["running_mean", "running_var", "num_batches_tracked"]
    assert BufferSnapshot(nn.BatchNorm1d(2, track_running_stats=False)).slots == []


def test_sparse_buffer_is_copied_only_if_it_has_changed():
    """A copy in each step of a graph with 2 million edges takes 14 ms."""
    model = nn.Module()
    model.register_buffer("graph", torch.eye(3).to_sparse())
    snapshot = BufferSnapshot(model)
    copies = []
    for step in range(4):
        if step == 2:
            model.graph._values().mul_(2)
        elif step == 3:
            model.graph = torch.eye(3).to_sparse()
        snapshot.save()
        copies.append(snapshot._kept[0].copy)
    assert copies[1] is copies[0]
    assert [copy.to_dense()[0, 0].item() for copy in copies] == [1, 1, 2, 1]


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("micro_batch_size", [8, 3])
def test_logged_terms_of_a_loss_add_up_to_it(tmp_path, reduction, micro_batch_size):
    def terms(outputs, targets):
        penalty = outputs.square().sum(1)
        return {
            "entropy": nn.functional.cross_entropy(outputs, targets, reduction=reduction),
            "penalty": getattr(penalty, reduction)(),
        }

    options = {"micro_batch_size": micro_batch_size, "data": {"shuffle": False}, "max_steps": 1}
    parts, points = {"loss": terms, "reduction": reduction, "model": tiny.model()}, []
    expected = {name: value.item() for name, value in terms(parts["model"](X[:8]), Y[:8]).items()}
    with session_of(tmp_path, parts, **options) as session:
        see_log_points(session, points.append)
        list(session.steps())
    (point,) = points
    assert {name: value for name, (value,) in point.logged.items()} == pytest.approx(expected)
    assert point.loss == [pytest.approx(sum(expected.values()))]


@pytest.mark.parametrize("optim", ["adamw", "lbfgs"])
def test_rate_of_a_skipped_step_is_that_of_the_next(tmp_path, optim):
    """An update that is undone must not restore the rate of the step before."""
    x = X.clone()
    x[12] = torch.inf  # in the second batch
    parts = {"train": (x, Y), "model": nn.Linear(4, 3)}
    options = {"on_nonfinite": "skip", "data": {"shuffle": False}, "max_steps": 6}
    options |= {"optim": {"name": optim, "lr": 0.5}, "schedule": {"name": "linear"}}
    found = []
    with session_of(tmp_path, parts, **options) as session:
        for result in session.steps():
            found.append(result.lr)
            assert session.optimizer.param_groups[0]["lr"] == result.lr
    assert found == pytest.approx([0.5 * (1 - n / 6) for n in (0, 1, 1, 2, 3, 3)])


def test_schedule_advances_only_with_taken_steps(tmp_path):
    parts = {"loss": nan_loss_at(2), "loss_is_separable": False}
    options = {"on_nonfinite": "skip", "schedule": {"name": "cosine"}, "max_steps": 5}
    with session_of(tmp_path, parts, **options) as session:
        rates = [result.lr for result in session.steps()]
    assert rates[1] == rates[2]
    assert len(set(rates)) == 4
    assert session.state.counts.nonfinite == 1
