import pytest

import surestep
from surestep.base.errors import ConfigError
from surestep.engine.step.callback import HOOKS, check_hooks


def watch(**methods):
    """Return a callback of a class Watch with these methods."""
    return type("Watch", (surestep.Callback,), methods)()


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("on_setp", "Did you mean 'on_step'"),
        ("on_training_epoch_finished", "Known: on_start, on_batch, on_backward, on_step, "),
    ],
)
def test_unknown_hook_is_rejected_with_the_known_ones(name, advice):
    with pytest.raises(ConfigError) as caught:
        check_hooks(watch(**{name: lambda self, *_: None}))
    message = f"Watch.{name} is never called: it is not a hook. {advice}"
    assert str(caught.value).startswith(message)


def test_arguments_of_a_hook_are_checked():
    with pytest.raises(ConfigError, match=r"Watch\.on_step is called with \(state, result\)"):
        check_hooks(watch(on_step=lambda self, result: None))
    with pytest.raises(ConfigError, match=r"Write def on_end\(self, state\)\."):
        check_hooks(watch(on_end=lambda self, args, state, control: None))
    check_hooks(watch(on_step=lambda self, *given: None))
    check_hooks(watch(on_step=lambda self, state, result, more=1: None))


def test_every_hook_can_be_overridden():
    assert len(HOOKS) == 9
    check_hooks(watch(**{name: getattr(surestep.Callback, name) for name in HOOKS}))
