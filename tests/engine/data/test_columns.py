"""Data whose parts are columns, such as a DataFrame: the error shows what to pass."""

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset

import surestep
from surestep.base.errors import DataError
from surestep.engine.data.columns import is_table
from tests import tiny

X, Y = tiny.data()
TO_TENSOR = "torch.tensor(table.to_numpy())"


class DataFrame:
    """What a DataFrame of pandas and one of polars have in common."""

    def __init__(self, values):
        self.values = np.asarray(values)
        self.shape, self.dtypes, self.columns = self.values.shape, [], list("abcd")

    def __len__(self):
        return len(self.values)

    def __getitem__(self, column):
        return self.values[:, self.columns.index(column)]

    def to_numpy(self):
        return self.values


class Series(DataFrame):
    """What a Series of pandas and one of polars have in common."""

    def __init__(self, values):
        super().__init__(values)
        self.dtype = self.values.dtype

    def __getitem__(self, label):
        return self.values[label]


def pandas_tables():
    pandas = pytest.importorskip("pandas", reason="needs pandas: pip install pandas")
    return pandas.DataFrame(X.numpy(), columns=list("abcd")), pandas.Series(Y.numpy())


TABLES = {"minimal": lambda: (DataFrame(X), Series(Y)), "pandas": pandas_tables}


@pytest.fixture(params=TABLES)
def tables(request):
    return TABLES[request.param]()


def error_of(folder, **parts):
    """Return the text of the error of a run on this data."""
    options = {"max_steps": 1}
    if isinstance(parts.get("train"), DataLoader):
        options["batch_size"] = None
    elif not isinstance(parts.get("train"), IterableDataset):
        options["data"] = {"shuffle": False}
    with pytest.raises(DataError) as caught:
        tiny.fit(folder, parts, **options)
    return str(caught.value)


def as_train(data):
    return {"train": data}


def as_val(data):
    return {"val": data}


def as_named_val(data):
    return {"val": {"clean": data}}


def as_loader(data):
    return {"train": DataLoader(data, 8)}


@pytest.mark.parametrize("given", [as_train, as_val, as_named_val, as_loader])
@pytest.mark.parametrize("which", [0, 1])
def test_table_alone_is_not_read_as_samples(tmp_path, tables, given, which):
    text = error_of(tmp_path, **given(tables[which]))
    name = {as_val: "val", as_named_val: "clean"}.get(given, "train")
    kind, shape = ("DataFrame", (20, 4)) if which == 0 else ("Series", (20,))
    assert f"The {name} data is a {kind} of shape {shape}, whose rows are not samples" in text
    argument = "val={'clean': (" if given is as_named_val else f"{name}=("
    assert f"Pass tensors: {argument}torch.tensor(table[inputs].to_numpy()).float()" in text
    for kind in (tuple, list):
        assert f"The {name} data is a {type(tables[which]).__name__} of" in error_of(
            tmp_path / kind.__name__, **given(kind([tables[which]]))
        )


def test_table_in_a_mixture_is_named(tmp_path, tables):
    mixed = surestep.samplers.mixture({"a": 0.5, "b": 0.5})
    text = error_of(tmp_path, train={"a": tables[0], "b": LIST_OF_SAMPLES}, sampler=mixed)
    assert "Pass tensors: train={'a': (torch.tensor(table[inputs]" in text


@pytest.mark.parametrize("given", [as_train, as_val, as_named_val])
@pytest.mark.parametrize("kind", [tuple, list, dict])
@pytest.mark.parametrize("parts", ["frame, series", "frame, tensor", "tensor, series"])
def test_tables_in_one_collection_are_named_with_their_conversion(
    tmp_path, tables, given, kind, parts
):
    values = dict(zip(("frame", "series", "tensor"), (*tables, X), strict=True))
    first, second = (values[name] for name in parts.split(", "))
    data = {"input": first, "y": second} if kind is dict else kind([first, second])
    text = error_of(tmp_path, **given(data))
    part = {as_named_val: "clean"}.get(given, given.__name__.removeprefix("as_"))
    assert f"The {part} data is a {kind.__name__} of (" in text
    instead = "{'input': ..., 'y': ...}" if kind is dict else "(x, y)"
    argument = f"val={{'clean': {instead}}}" if given is as_named_val else f"{part}={instead}"
    assert argument in text
    assert TO_TENSOR in text
    assert "sets of samples" not in text


LISTS = (X.tolist(), Y.tolist())


@pytest.mark.parametrize("given", [as_train, as_val])
@pytest.mark.parametrize(
    ("data", "instead", "converts"),
    [
        (LISTS, "=(x, y)", True),
        (list(LISTS), "=(x, y)", True),
        ((X, Y.tolist()), "=(x, y)", True),
        ([X, Y], "=(x, y)", False),
        ([X.numpy(), Y.numpy()], "=(x, y)", False),
        ({"input": LISTS[0], "y": LISTS[1]}, "={'input': ..., 'y': ...}", True),
        ({"input": X, "y": LISTS[1]}, "={'input': ..., 'y': ...}", True),
        (((X, X), Y), "=(x, t, y). The last part is the targets", False),
        (([X, X], Y), "=(x, t, y). The last part is the targets", False),
        ((X, (Y, Y)), "=(x, t, y). The last part is the targets", False),
        (({"input": X}, Y), "={'input': ..., 'target': y}", False),
        ((X, None), "=(x,) and Task(inputs=lambda batch: (batch[0], None))", False),
        ([X, None], "=(x,) and Task(inputs=lambda batch: (batch[0], None))", False),
        ({"input": X, "y": None}, "leave out what is None", False),
        ({"input": X, "y": 3}, "Each part needs a row for each sample", False),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_columns_are_named_with_what_to_pass(tmp_path, given, data, instead, converts):
    text = error_of(tmp_path, **given(data))
    assert instead in text
    assert ("Convert lists with torch.tensor(data)." in text) == converts
    assert TO_TENSOR not in text
    assert len(text) < 700


ONE, TWO = torch.randn(2, 20, 4, generator=torch.Generator().manual_seed(1))
MSE = {"loss": torch.nn.MSELoss(), "model": lambda: torch.nn.Linear(4, 4)}
PAIRS = {
    "two inputs and two targets": ((X, ONE), (TWO, X)),
    "training and validation": ((X, ONE), (X[:12], ONE[:12])),
    "lists": ([X, ONE], [TWO, X]),
    "arrays": ((X.numpy(), ONE.numpy()), (TWO.numpy(), X.numpy())),
    "dicts": ({"input": X, "y": ONE}, {"input": TWO, "y": X}),
    "one pair": ((X, ONE),),
}


@pytest.mark.parametrize("given", [as_train, as_val, as_named_val])
@pytest.mark.parametrize("pairs", PAIRS.values(), ids=PAIRS)
def test_tuple_of_pairs_of_columns_is_not_trained_as_a_few_samples(tmp_path, given, pairs):
    parts = {"train": (X, ONE), **MSE, **given(pairs)}
    text = error_of(tmp_path, **parts)
    assert f"which is read as {len(pairs)} sample" in text
    assert "If they are samples, pass a list of them." in text
    assert len(text) < 700


LIST = [(X, ONE), (TWO, X)]


def test_list_of_pairs_that_may_be_columns_is_a_warning(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
    with pytest.warns(UserWarning, match="which is read as 2 samples. If its parts are inputs"):
        tiny.fit(tmp_path, {**MSE, "train": LIST, "model": model}, max_steps=1)


class Attention(torch.nn.MultiheadAttention):
    def forward(self, x):
        return super().forward(x, x, x, need_weights=False)[0]


class Recurrent(torch.nn.GRU):
    def forward(self, x):
        return super().forward(x)[0]


OF_SEQUENCES = {
    "attention": Attention(4, 1, batch_first=True),
    "recurrent": Recurrent(4, 4, batch_first=True),
    "convolution": torch.nn.Conv1d(20, 20, 1),
    "norm": torch.nn.BatchNorm1d(20),
}


@pytest.mark.parametrize("model", OF_SEQUENCES.values(), ids=OF_SEQUENCES)
def test_list_of_sequences_is_samples(tmp_path, model):
    tiny.fit(tmp_path, {**MSE, "train": LIST, "model": model}, max_steps=1)


def test_list_of_validation_samples_may_be_sequences(tmp_path):
    tiny.fit(tmp_path, {**MSE, "train": (X, ONE), "val": LIST}, max_steps=1)


def test_targets_of_two_columns_train_as_proposed(tmp_path):
    parts = {**MSE, "train": ((X, ONE), (TWO, X))}
    assert "Task(inputs=lambda batch: (batch[:-2], batch[-2:]))" in error_of(tmp_path, **parts)

    def loss(outputs, targets):
        assert len(targets) == 2
        return (outputs - targets[0] - targets[1]).square().mean()

    parts |= {"train": (X, ONE, TWO, X), "model": lambda: Sums(2, classes=4), "loss": loss}
    parts |= {"inputs": lambda batch: (batch[:-2], batch[-2:])}
    tiny.fit(tmp_path, parts, max_steps=1)


@pytest.mark.parametrize("kind", [tuple, list])
@pytest.mark.parametrize("make", [lambda data: data, lambda data: DataLoader(data, 8)])
def test_list_of_datasets_is_not_samples(tmp_path, kind, make):
    one = make(torch.utils.data.TensorDataset(X, Y))
    for given, instead in (
        (as_train, "Pass train=torch.utils.data.ConcatDataset(datasets), or a dict of datasets"),
        (as_val, "Give each validation set a name: val={'a': ..., 'b': ...}."),
        (as_named_val, "Pass val={'clean': torch.utils.data.ConcatDataset(datasets)}."),
    ):
        assert instead in error_of(tmp_path, **given(kind([one, one])))
        assert "Pass its element alone: " in error_of(tmp_path, **given(kind([one])))
    tiny.fit(tmp_path, {"val": {"a": one, "b": one}}, max_steps=1)


@pytest.mark.parametrize(
    "parts",
    [
        {"train": (X, X, Y), "model": lambda: Sums(2)},
        {"train": {"input": X, "target": Y}},
        {
            "train": (X,),
            "inputs": lambda batch: (batch[0], None),
            "loss": lambda x, _: x.square().mean(),
        },
    ],
    ids=["flat tuple", "dict", "no targets"],
)
def test_what_the_errors_propose_trains(tmp_path, parts):
    tiny.fit(tmp_path, {**parts, "val": parts["train"]}, max_steps=2)


class Sums(torch.nn.Module):
    """A model of several inputs."""

    def __init__(self, inputs, classes=tiny.CLASSES):
        super().__init__()
        self.inputs, self.net = inputs, torch.nn.Linear(tiny.FEATURES, classes)

    def forward(self, *given):
        assert len(given) == self.inputs
        return self.net(sum(given))


LIST_OF_SAMPLES = list(zip(X, Y, strict=True))


@pytest.mark.parametrize("data", [LIST_OF_SAMPLES, tuple(LIST_OF_SAMPLES), LIST_OF_SAMPLES[:2]])
def test_sequence_of_samples_trains(tmp_path, data):
    tiny.fit(tmp_path, {"train": data, "val": data}, max_steps=1)


def test_validation_sets_and_mixtures_of_lists_are_not_columns(tmp_path):
    sets = {"clean": LIST_OF_SAMPLES, "noisy": LIST_OF_SAMPLES[:8]}
    mixed = surestep.samplers.mixture({"clean": 0.5, "noisy": 0.5})
    tiny.fit(tmp_path, {"train": sets, "val": sets, "sampler": mixed}, max_steps=1)


def test_datasets_without_shares_are_not_columns(tmp_path):
    many = {f"set {index}": LIST_OF_SAMPLES for index in range(60)}
    text = error_of(tmp_path / "many", train=many)
    assert "train is a dict of 60 datasets, and their shares are not set" in text
    assert "'set 7': 0.017, ...}" in text
    text = error_of(tmp_path / "two", train=dict(list(many.items())[:2]))
    assert "mixture({'set 0': 0.5, 'set 1': 0.5}))" in text
    both = ConcatDataset([LIST_OF_SAMPLES, LIST_OF_SAMPLES])  # the other proposal
    tiny.fit(tmp_path / "one after another", {"train": both}, max_steps=1)


class WithNumpy(Dataset):
    """A dataset that has the methods of a table."""

    dtype = np.float32

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return X[index], Y[index]

    def to_numpy(self):
        return X.numpy()


def test_dataset_is_not_a_table(tmp_path):
    tiny.fit(tmp_path, {"train": WithNumpy()}, max_steps=1)
    assert not is_table(X)
    assert not is_table(X.numpy())
    assert is_table(Series(Y))


@pytest.mark.parametrize("values", [np.array([["a"] * 4] * 20), np.array([[1, "a"]] * 20, object)])
@pytest.mark.parametrize("kind", [tuple, dict])
def test_array_of_text_or_objects_is_named(tmp_path, values, kind):
    data = (X, values) if kind is tuple else {"input": X, "y": values}
    for given in (as_train, as_val):
        text = error_of(tmp_path, **given(data))
        assert f"has the dtype {values.dtype}" in text
        assert "numpy.unique(names, return_inverse=True)[1]" in text


def test_integers_whose_rows_torch_cannot_select_are_named(tmp_path):
    text = error_of(tmp_path, train=(X.numpy(), Y.numpy().astype("uint16")))
    assert "has the dtype torch.uint16" in text
    assert "Convert it with .to(torch.int64)" in text


class Values(Dataset):
    """Samples that a function of the index makes."""

    def __init__(self, make):
        self.make = make

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return self.make(index)


class Lines(Values, IterableDataset):
    """The same as a stream."""

    __len__ = None

    def __iter__(self):
        return map(self.make, range(len(X)))


def make_image():
    image = pytest.importorskip("PIL.Image", reason="needs Pillow: pip install pillow")
    return image.new("L", (4, 4))


NONE = "Return the sample from __getitem__: (x, y)"
SOME = "Return what the other samples have there"
PART = "If the loss needs no targets, return the inputs alone"
IMAGE = "torchvision.transforms.functional.to_tensor(image)"


@pytest.mark.parametrize("kind", [Values, Lines])
@pytest.mark.parametrize("part", ["train", "val"])
@pytest.mark.parametrize(
    ("make", "place", "fix"),
    [
        (lambda index: None, "Sample 0", NONE),
        (lambda index: None if index == 3 else (X[index], Y[index]), "Sample 3", SOME),
        (lambda index: (X[index], None), "Part [1] of sample 0", PART),
        (lambda index: {"x": X[index], "y": None}, "Part ['y'] of sample 0", PART),
        (lambda index: (X[index], None if index == 3 else 1), "Part [1] of sample 3", SOME),
        (lambda index: (make_image(), 1), "Part [0] of sample 0", IMAGE),
        (lambda index: {"x": make_image(), "y": 1}, "Part ['x'] of sample 0", IMAGE),
        (lambda index: make_image(), "Sample 0", IMAGE),
        (lambda index: (Series(X[index]), 1), "Part [0] of sample 0", "row.to_numpy()"),
        (lambda index: (X[index], {1, 2}), "Part [1] of sample 0", "Task(collate_fn=...)"),
    ],
)
def test_value_that_no_batch_can_hold_is_named(tmp_path, kind, part, make, place, fix):
    text = error_of(tmp_path, **{"train": (X, Y), part: kind(make)})
    assert f"{place} of the {'stream' if kind is Lines else part} data is " in text
    assert fix in text
    left_out = fix is SOME and part == "train" and kind is Values
    assert ("exclude_samples=[3]" in text) == left_out
