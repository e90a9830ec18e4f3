import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

from surestep import samplers
from surestep.base.errors import ConfigError, DataError, TaskError
from surestep.engine.data.order import dataset_view
from tests import tiny

X, Y = tiny.data()


class Stream(IterableDataset):
    def __iter__(self):
        yield from zip(X, Y, strict=True)


class Rows(Dataset):
    """A map-style dataset with an attribute `targets`, like torchvision's datasets."""

    targets = Y.tolist()

    def __len__(self):
        return len(Y)

    def __getitem__(self, index):
        return X[index], Y[index]


def seen(train, order=None, *, epoch=0, **said):
    """Return the inputs of an epoch in training order."""
    read = tiny.train_loader({"train": train, "sampler": order}, **said).batches(epoch)
    return torch.cat([micro.args[0] for batch in read for micro in batch.micro_batches])


@pytest.mark.parametrize(
    "train",
    [
        (X, Y),
        TensorDataset(X, Y),
        Subset(TensorDataset(X, Y), range(20)),
        Rows(),
        DataLoader(Rows()),
    ],
    ids=["tensors", "TensorDataset", "subset", "rows", "loader"],
)
def test_balanced_sampler_reads_the_targets_of_any_type_of_data(train):
    said = {"batch_size": None} if isinstance(train, DataLoader) else {}
    weights = 1 / torch.bincount(Y).double()[Y]
    expected = seen((X, Y), samplers.weighted(weights), epoch=2)
    assert torch.equal(seen(train, samplers.balanced(), epoch=2, **said), expected)


@pytest.mark.parametrize("workers", [0, 2])
def test_order_is_the_same_for_any_number_of_workers(workers):
    expected = X[samplers.weighted(range(1, 21)).bind(dataset_view(tiny.task())).indices(0, 1, 8)]
    said = {"data": {"num_workers": workers}}
    assert torch.equal(seen(Rows(), samplers.weighted(range(1, 21)), epoch=1, **said), expected)


def test_length_of_an_epoch_is_the_length_of_the_sampler():
    planned = tiny.plan({"sampler": samplers.weighted([1.0] * 20, 100)})
    assert (planned.plan.steps_per_epoch, planned.plan.total_steps) == (13, 26)
    batches = list(tiny.train_loader({"sampler": samplers.weighted([1.0] * 20, 100)}).batches(0))
    assert [batch.samples for batch in batches] == [8] * 12 + [4]
    assert [batch.ends_epoch for batch in batches] == [False] * 12 + [True]


def test_length_function_is_called_with_each_sample():
    for train in ((X, Y), Rows()):
        by_class = seen(train, samplers.by_length(lambda sample: int(sample[1]) + 1))
        assert torch.equal(by_class, seen((X, Y), samplers.by_length(Y + 1)))


def test_mixture_draws_from_datasets_by_share():
    train = {"ones": (torch.ones(6, 4), torch.zeros(6).long()), "rows": Rows()}
    found = seen(train, samplers.mixture({"ones": 0.25, "rows": 0.75}, 16))
    assert int((found == 1).all(1).sum()) == 4


def test_sampler_of_a_dataloader_sets_the_order():
    sampler = WeightedRandomSampler(list(range(20)), 50)
    found = seen(DataLoader(Rows(), 8, sampler=sampler), epoch=3, batch_size=None)
    assert torch.equal(found, seen((X, Y), samplers.weighted(range(20), 50), epoch=3))


def decision(parts, **said):
    found = {each.option: each for each in tiny.plan(parts, **said).plan.decisions}
    return found["data.sampler"].value, found["data.sampler"].reason, found["data.shuffle"].value


@pytest.mark.parametrize(
    ("parts", "said", "expected"),
    [
        ({}, {}, ("shuffled", "each sample once in an epoch: data.shuffle is on", True)),
        (
            *({}, {"data": {"shuffle": False}}),
            ("sequential", "each sample once, as stored: data.shuffle is off", False),
        ),
        (
            *({"train": Stream()}, {"max_steps": 3}),
            (
                "the stream's",
                "samples come as the stream yields them; data.shuffle_buffer shuffles",
                False,
            ),
        ),
        (
            *({"sampler": samplers.sequential()}, {}),
            ("sequential", "each sample once, as stored", False),
        ),
        (
            *({"sampler": samplers.weighted([1.0] * 20)}, {}),
            ("weighted", "20 drawn with replacement from 20 samples", True),
        ),
        (
            *({"sampler": samplers.by_length([1, 9] * 10, window=2)}, {"batch_size": 5}),
            ("by length", "padding 0.0% instead of 44.4%; windows of 2 batches", True),
        ),
        (
            {"train": DataLoader(Rows(), 8, sampler=range(20))},
            {},
            (
                "sampler: range",
                "The DataLoader's range: 20 positions; an epoch was read twice and was the same",
                True,
            ),
        ),
    ],
    ids=["shuffled", "not shuffled", "stream", "sequential", "weighted", "by length", "sampler"],
)
def test_plan_reports_the_order_with_its_reason(parts, said, expected):
    assert decision(parts, **said) == expected


@pytest.mark.parametrize(
    ("parts", "error", "message"),
    [
        (
            {"train": DataLoader(Rows(), 8, shuffle=True), "sampler": samplers.sequential()},
            DataError,
            "is 'sequential', but the DataLoader has a RandomSampler. Use one of them",
        ),
        (
            {"train": DataLoader(Rows(), 8, sampler=[1, 2]), "sampler": samplers.shuffled()},
            DataError,
            "is 'shuffled', but the DataLoader has a list",
        ),
        (
            {"train": {"a": (X, Y), "b": Rows()}},
            DataError,
            r"2 datasets, and their shares are not set.*mixture\(\{'a': 0.5, 'b': 0.5\}\)\)",
        ),
        (
            {"sampler": lambda seed, epoch: range(20)},
            TaskError,
            r"sampler is a function.*samplers\.custom",
        ),
        ({"sampler": samplers.mixture({"a": 1.0})}, DataError, "train is one dataset"),
    ],
)
def test_sampler_that_does_not_match_the_data_is_rejected(parts, error, message):
    with pytest.raises(error, match=message):
        tiny.plan(parts, batch_size=8)


@pytest.mark.parametrize("shuffle", [True, False])
def test_sampler_together_with_data_shuffle_is_rejected(shuffle):
    with pytest.raises(
        ConfigError, match=rf"data\.shuffle={shuffle} .* sampler 'shuffled'\. Leave"
    ):
        tiny.plan({"sampler": samplers.shuffled()}, data={"shuffle": shuffle})


class Sentences(Dataset):
    """Samples of different lengths, filled with ones."""

    lengths = torch.randint(1, 40, (100,), generator=torch.Generator().manual_seed(0)).tolist()

    def __len__(self):
        return 100

    def __getitem__(self, index):
        return torch.ones(self.lengths[index]), index % 3


def padded(samples):
    words = torch.nn.utils.rnn.pad_sequence([words for words, _ in samples], batch_first=True)
    return words, torch.tensor([label for _, label in samples])


def test_padding_reported_in_the_plan_is_that_of_the_batches():
    order = samplers.by_length(lambda sample: len(sample[0]), window=3)
    parts = {"train": Sentences(), "collate_fn": padded, "sampler": order}
    cut = {"batch_size": 8, "micro_batch_size": 4}
    words = [
        micro.args[0]
        for batch in tiny.train_loader(parts, **cut).batches(0)
        for micro in batch.micro_batches
    ]
    share = sum(int((w == 0).sum()) for w in words) / sum(w.numel() for w in words)
    assert sum(int(w.sum()) for w in words) == sum(Sentences.lengths)
    assert tiny.plan(parts, **cut).plan.reason("data.sampler").startswith(f"padding {share:.1%} ")


class Huge(Dataset):
    """More samples than the order of which fits in memory."""

    def __len__(self):
        return 10**12

    def __getitem__(self, index):
        return torch.full((4,), float(index % 7)), index % 3


@pytest.mark.parametrize(
    "wrap", [lambda data: data, lambda data: DataLoader(data, 8, shuffle=True)]
)
@pytest.mark.parametrize("limit", [None, 2])
def test_order_that_does_not_fit_in_memory_is_rejected(tmp_path, wrap, limit):
    train = wrap(Huge())
    size = {"batch_size": None} if isinstance(train, DataLoader) else {}
    with pytest.raises(DataError) as caught:
        tiny.fit(tmp_path, {"train": train}, max_steps=2, limit_train_batches=limit, **size)
    for named in ("1,000,000,000,000 samples", "7.3 TiB", "data.shuffle=False", "samplers.custom("):
        assert named in str(caught.value)


@pytest.mark.parametrize(
    ("set_options", "parts", "fix"),
    [
        ({"exclude_samples": [3]}, {}, r"Leave them out in the dataset"),
        ({"exclude_samples": [3], "data": {"shuffle": False}}, {}, r"Leave them out in the"),
        (
            {},
            {
                "train": {"a": Huge(), "b": Rows()},
                "sampler": samplers.mixture({"a": 0.5, "b": 0.5}, samples=8),
            },
            r"samplers\.custom\(.*torch\.randint\(1000000000020, ",
        ),
    ],
)
def test_order_that_cannot_be_filtered_or_mixed_in_memory_is_rejected(
    tmp_path, set_options, parts, fix
):
    with pytest.raises(DataError, match=rf"7\.3 TiB, and this machine has .*{fix}"):
        tiny.fit(tmp_path, {"train": Huge(), **parts}, max_steps=2, **set_options)


@pytest.mark.parametrize(
    ("set_options", "parts"),
    [
        ({"data": {"shuffle": False}}, {}),
        ({}, {"sampler": samplers.sequential()}),
        ({}, {"sampler": samplers.custom(lambda seed, epoch: torch.randint(10**12, (100,)))}),
    ],
)
def test_huge_dataset_trains_in_the_orders_that_the_error_names(tmp_path, set_options, parts):
    run = tiny.fit(tmp_path, {"train": Huge(), **parts}, max_steps=2, **set_options)
    assert run.status["step"] == 2
