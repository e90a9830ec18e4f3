import pytest

import surestep
from surestep.base.errors import ConfigError
from surestep.engine.step.callback import HOOKS, check_hooks


def watch(**methods):
    """Return a callback of a class Watch with these methods."""
    return type("Watch", (surestep.Callback,), methods)()


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("on_epoch_end", "Use on_evaluate(state, metrics), which is called after each evaluation"),
        ("on_train_epoch_end", "Use on_evaluate(state, metrics)"),
        ("on_train_begin", "Use on_start(state)."),
        ("on_train_batch_start", "Use on_batch(state, batch)."),
        ("on_step_end", "Use on_step(state, result)."),
        ("on_before_optimizer_step", "Use on_backward(state), which sees the gradients"),
        ("on_save_checkpoint", "Use state_dict() and load_state_dict(state)"),
        ("on_setp", "Did you mean 'on_step'"),
    ],
)
def test_unknown_hook_is_rejected_with_the_matching_hook(name, meant):
    with pytest.raises(ConfigError) as caught:
        check_hooks(watch(**{name: lambda self, *_: None}))
    message = f"Watch.{name} is never called: it is not a hook. {meant}"
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
