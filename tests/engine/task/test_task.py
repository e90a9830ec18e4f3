import pytest
from torch import nn

from surestep.base.errors import TaskError
from tests import tiny

X, Y = tiny.data()


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ({"loss": 3}, r"loss is a int, not a callable\. Give nn\.CrossEntropyLoss\(\)"),
        ({"loss": "hubber"}, r"loss='hubber' is not a loss\. Did you mean 'huber'"),
        ({"model": "resnet"}, r"model is a str\. Give an nn\.Module or a function"),
        (
            {"metrics": {"a": 3}},
            r"metrics\['a'\] is a int, which is not a function of \(outputs, targets\)",
        ),
        ({"metrics": {"loss": max}}, r"A metric cannot be called 'loss'\. Use another name"),
        ({"metrics": {1: max}}, r"A metric cannot be called 1\. Use another name, such as"),
        ({"metrics": {"": max}}, r"A metric cannot be called ''"),
        ({"val": {1: (X, X)}}, r"A validation set cannot be called 1: .* Use '1'\."),
        ({"val": {"": (X, X)}}, r"A validation set cannot be called '': .* Use 'clean'\."),
        ({"metrics": {"val/a": max}}, r"A metric cannot be called 'val/a'"),
        ({"val": {"train": (X, Y)}}, r"'train', the name of the training data.*'train_part': "),
        ({"val": {"test": (X, Y)}, "test": (X, Y)}, r"'test', the name of Task\(test=\.\.\.\)"),
        ({"val": {"test": (X, Y)}}, r"Use another name, such as val=\{'test_part': \.\.\.\}"),
        (
            {"val": {"a/b": (X, Y)}},
            r"called 'a/b': its metrics are called 'set/metric'\. Use 'a_b'",
        ),
        ({"metrics": {"acc": "acc"}}, r"is a str, .*Write metrics=\{'acc': lambda outputs, targ"),
        ({"metrics": "acc"}, r"is a str, not a dict of functions by name\. Write metrics=\{'accur"),
        (
            {"metrics": ["acc"]},
            r"is a list, not a dict of functions by name\. Write metrics=\{'acc",
        ),
    ],
)
def test_invalid_argument_of_task_is_rejected(parts, sentence):
    with pytest.raises(TaskError, match=sentence):
        tiny.task(**parts)


def test_model_can_be_a_function_that_builds_it():
    assert isinstance(tiny.task(model=tiny.model).build_model(), nn.Sequential)


def test_model_function_with_arguments_is_rejected():
    says = "model must be a function without arguments, and this one takes x"
    with pytest.raises(TaskError, match=says):
        tiny.task(model=lambda x, *, y=1: x).build_model()


def test_model_function_that_returns_no_module_is_rejected():
    with pytest.raises(TaskError, match="The function given as model returned a int"):
        tiny.task(model=lambda: 3).build_model()


@pytest.mark.parametrize(
    ("returned", "args", "kwargs"),
    [
        ((X, Y), (X,), {}),
        (((X, 2 * X), Y), (X, 2 * X), {}),
        (({"x": X}, Y), (), {"x": X}),
        (([X], Y), ([X],), {}),
    ],
    ids=["one", "tuple", "dict", "list"],
)
def test_inputs_function_splits_a_batch_into_arguments(returned, args, kwargs):
    found = tiny.task(inputs=lambda batch: returned).split_batch("any batch")
    assert str(found) == str((args, kwargs, Y))


@pytest.mark.parametrize(
    ("val", "names"),
    [
        (None, []),
        ((X, Y), ["val"]),
        ({"x": X, "y": Y}, ["val"]),
        ({"x": X.numpy(), "y": Y.numpy()}, ["val"]),
        ({"near": (X, Y), "far": (X, Y)}, ["near", "far"]),
    ],
    ids=["none", "one", "dict of tensors", "dict of arrays", "two"],
)
def test_validation_sets_are_named(val, names):
    assert list(tiny.task(val=val).val_sets()) == names
