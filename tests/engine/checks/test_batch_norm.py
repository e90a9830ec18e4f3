"""BatchNorm with a forward of one sample is rejected by arithmetic exactly when torch fails."""

import itertools

import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset

import surestep
from surestep.base.errors import DataError
from surestep.engine.plan.batching import BatchLayout, find_single, positions_or_dummy
from surestep.trainer.dry_run import dry_run
from tests import tiny


def flat(layer=None):
    """A model whose BatchNorm gets one value per sample and channel."""
    return nn.Sequential(nn.Linear(4, 8), layer or nn.BatchNorm1d(8), nn.Linear(8, 3))


def pooled():
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)),
        nn.Conv2d(1, 8, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.BatchNorm2d(8),
        nn.Flatten(),
        nn.Linear(8, 3),
    )


def convolved():
    """A model whose BatchNorm gets 4 values per sample and channel."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)),
        nn.Conv2d(1, 8, 1),
        nn.BatchNorm2d(8),
        nn.Flatten(),
        nn.Linear(32, 3),
    )


def task(samples, model=flat, **parts):
    return tiny.task(model=model(), train=tiny.data(samples), **parts)


def prepare(tmp_path, samples, model=flat, parts=None, **options):
    made = task(samples, model, **(parts or {}))
    return surestep.prepare(made, tiny.config(**options), run=tmp_path)


def torch_accepts(samples, batch, micro, drop_last):
    """Train an epoch with plain torch; return True if no forward raised an error."""
    net, (x, _) = flat(), tiny.data(samples)
    for first in range(0, samples, batch):
        rows = x[first : first + batch]
        if drop_last and len(rows) < batch:
            continue
        try:
            for part in rows.split(micro):
                net(part)
        except ValueError:
            return False
    return True


@pytest.mark.parametrize("drop_last", [False, True])
def test_batch_layout_is_rejected_exactly_if_torch_rejects_a_forward(drop_last):
    for samples, batch, micro in itertools.product(range(1, 14), range(1, 8), range(1, 8)):
        if micro > batch or (drop_last and samples < batch):
            continue
        found = find_single(BatchLayout(samples, batch, micro, drop_last), None)
        assert (found is None) == torch_accepts(samples, batch, micro, drop_last)


@pytest.mark.parametrize("model", [flat, pooled])
@pytest.mark.parametrize(
    ("samples", "options", "said"),
    [
        (17, {}, "the last batch of an epoch has one sample. Set data.drop_last=True; or use "),
        (21, {"micro_batch_size": 4}, r"epoch \(5 samples\) has a micro-batch of one sample\. Set"),
        (16, {"micro_batch_size": 7}, "every batch has a micro-batch of one sample. Use batch_si"),
        (16, {"batch_size": 1}, "every batch has one sample. Use batch_size=2; or replace"),
    ],
)
def test_batch_norm_forward_of_one_sample_is_rejected_before_the_run(
    tmp_path, samples, options, said, model
):
    with pytest.raises(DataError, match=rf"BatchNorm '\d' would get one value per.*{said}"):
        prepare(tmp_path, samples, model, **options)


def test_dry_run_rejects_a_batch_norm_forward_of_one_sample():
    with pytest.raises(DataError, match="BatchNorm '1' would get one value per channel"):
        dry_run(task(17), tiny.config())


def test_each_fix_in_the_message_trains(tmp_path):
    with pytest.raises(DataError) as refused:
        prepare(tmp_path / "a", 21, micro_batch_size=4)
    assert "data.drop_last=True; or use batch_size=7; or use micro_batch_size=3" in str(
        refused.value
    )
    ways = {
        "drop": {"data": {"drop_last": True}, "micro_batch_size": 4},
        "batch": {"batch_size": 7, "micro_batch_size": 4},
        "micro": {"micro_batch_size": 3},
    }
    for name, options in ways.items():
        with prepare(tmp_path / name, 21, **options) as session:
            assert list(session.steps())
    model = flat()
    made = tiny.task(model=model, train=tiny.data(17), keep_eval=[model[1]])
    with surestep.prepare(made, tiny.config(), run=tmp_path / "eval") as session:
        assert len(list(session.steps())) == 6


@pytest.mark.parametrize(
    ("samples", "model", "options"),
    [
        (17, convolved, {}),
        (17, flat, {"epochs": None, "max_steps": 2}),
        (17, flat, {"optim": {"groups": ["1.* freeze", "2.* lr=0.1"]}}),
        (17, lambda: flat(nn.LayerNorm(8)), {}),
        (18, flat, {"micro_batch_size": 6}),
    ],
    ids=["convolution", "ends before", "frozen", "other norm", "two left"],
)
def test_batch_norm_with_enough_values_is_accepted(tmp_path, samples, model, options):
    with prepare(tmp_path, samples, model, **options) as session:
        assert list(session.steps())


def test_validation_with_running_statistics_accepts_one_sample(tmp_path):
    with prepare(tmp_path, 16, parts={"val": tiny.data(1)}) as session:
        assert session.evaluate()["val/loss"] > 0


def test_validation_of_one_sample_without_running_statistics_is_rejected(tmp_path):
    def bare():
        return flat(nn.BatchNorm1d(8, track_running_stats=False))

    parts = {"val": tiny.data(9)}
    with pytest.raises(DataError, match="val data: BatchNorm '1' would get one value per channel"):
        prepare(tmp_path, 16, bare, parts, validation={"batch_size": 4})


def test_last_batch_skipped_by_limit_val_batches_is_not_rejected(tmp_path):
    def bare():
        return flat(nn.BatchNorm1d(8, track_running_stats=False))

    options = {"validation": {"batch_size": 4}, "limit_val_batches": 2}
    with prepare(tmp_path, 16, bare, {"val": tiny.data(9)}, **options) as session:
        assert session.evaluate()["val/loss"] > 0


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("ranks", [2, 3])
def test_batch_layout_on_ranks_is_rejected_if_a_rank_has_one_sample(ranks, whole):
    for samples, batch, micro in itertools.product(range(3, 14), range(ranks, 8), range(1, 5)):
        cut = BatchLayout(samples, batch, micro, ranks=ranks, full=whole)
        sizes = [
            len(positions_or_dummy(range(*part)))
            for rank in range(ranks)
            for first, end, _ in cut.batches(0)
            for part in cut._replace(rank=rank).micro_batches(first, end)
        ]
        assert (find_single(cut, None) is None) == (min(sizes) > 1)


class Flow(IterableDataset):
    """A stream without a length."""

    def __iter__(self):
        return iter(zip(*tiny.data(17), strict=True))


def test_stream_that_ends_with_a_single_sample_raises_with_a_fix(tmp_path):
    made = tiny.task(model=flat(), train=Flow())
    with (
        pytest.raises(DataError, match=r"one value per channel in a batch of 1 samples.*drop_last"),
        surestep.prepare(made, tiny.config(epochs=None, max_steps=9), run=tmp_path) as session,
    ):
        list(session.steps())


def test_plan_reports_a_last_forward_of_one_sample():
    reason = tiny.plan({"model": flat(), "train": tiny.data(17)}).plan.reason("data.drop_last")
    assert "the last batch ends in a forward of 1 sample" in reason
    for usual in ({"model": flat(), "train": tiny.data(18)}, {"train": tiny.data(17)}):
        assert "forward of 1 sample" not in tiny.plan(usual).plan.reason("data.drop_last")


def test_batch_norm_check_preserves_buffers_and_weights(tmp_path):
    model = flat()
    before = tiny.weights(model)
    made = tiny.task(model=model, train=tiny.data(16))
    with surestep.prepare(made, tiny.config(), run=tmp_path):
        assert torch.equal(tiny.weights(model), before)
