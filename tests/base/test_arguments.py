import pytest

import surestep
from surestep.base.errors import ConfigError, TaskError
from tests import tiny


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (lambda: tiny.task(metric={}), TaskError, r"^Task\(\) has no argument 'metric'.*'metrics'"),
        (
            lambda: surestep.Trainer(tiny.task(), tiny.config(), callback=[]),
            ConfigError,
            r"^Trainer\(\) has no argument 'callback'\. Did you mean 'callbacks'\?$",
        ),
        (
            lambda: surestep.prepare(tiny.task(), tiny.config(), resumes="must"),
            ConfigError,
            r"^prepare\(\) has no argument 'resumes'\. Did you mean 'resume'\?$",
        ),
    ],
)
def test_misspelled_argument_is_named_with_a_similar_one(call, error, sentence):
    with pytest.raises(error, match=sentence):
        call()


def test_missing_argument_is_an_error_of_python():
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'model'"):
        surestep.Task()


def test_subclass_can_have_other_arguments():
    class Named(surestep.Trainer):
        def __init__(self, name):
            self.name = name

    assert Named(name="mine").name == "mine"
