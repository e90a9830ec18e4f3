import pydoc

import pytest
from pydantic import ValidationError

from surestep.base.errors import ConfigError
from surestep.config.config import Config, Optim, iter_options
from surestep.config.group import ConfigGroup


def test_default_config_has_no_options_set():
    assert Config().set_options() == {}


def test_set_options_have_dotted_names():
    config = Config(epochs=2, optim={"lr": 0.1}, data={"shuffle": False})
    assert config.set_options() == {"epochs": 2.0, "optim.lr": 0.1, "data.shuffle": False}


def test_from_options_inverts_set_options():
    config = Config(
        max_steps=7, optim=Optim(betas=(0.8, 0.9)), schedule={"warmup": "10%"}, max_grad_norm="off"
    )
    assert Config.from_options(config.set_options()) == config


def test_single_process_config_drops_the_parallel_options():
    config = Config(epochs=2, parallel={"strategy": "fsdp", "offload": "all"}, optim={"lr": 0.1})
    assert config.single_process() == Config(epochs=2, optim={"lr": 0.1})


def test_every_option_has_a_description():
    assert [name for name, field in iter_options() if not field.description] == []


@pytest.mark.parametrize("group", [Config, *ConfigGroup.__subclasses__()])
def test_help_describes_each_option_in_words(group):
    shown = pydoc.render_doc(group, renderer=pydoc.plaintext)
    own = [(name, field) for name, field in group.model_fields.items() if field.description]
    assert [name for name, field in own if f"{name}: {field.description}\n" not in shown] == []


def test_iter_options_lists_options_and_not_groups():
    everything = {name for name, _ in iter_options()}
    assert {"epochs", "optim.lr", "logging.every"} <= everything
    assert {"optim", "logging"}.isdisjoint(everything)


@pytest.mark.parametrize("config", [Config(), Config().optim], ids=["config", "group"])
def test_config_is_frozen(config):
    with pytest.raises(ValidationError, match="frozen"):
        setattr(config, next(iter(type(config).model_fields)), 3)


def test_misspelled_choice_is_rejected_with_a_suggestion():
    with pytest.raises(ConfigError, match=r"Did you mean 'adamw'\?"):
        Config.from_options({"optim.name": "admw"})
    with pytest.raises(ConfigError) as caught:
        Config.from_options({"optim.name": "nothing like it"})
    assert "Did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"optim.learning_rate": 0.1}, r"no option 'optim\.learning_rate'\. .*optim\.lr"),
        ({"learning_rate": 0.1}, r"no option 'learning_rate'\. Use optim\.lr=0\.1\."),
        ({"gradient_accumulation_steps": 4}, r"Use micro_batch_size, which is batch_size / acc"),
        ({"optim.nesterv": 0.1}, r"Did you mean 'optim\.nesterov'\?"),
        ({"epoch": 1}, r"no option 'epoch'\. Did you mean 'epochs'\?"),
        (
            {"lr": 0.1},
            r"no option 'lr'\. Did you mean 'optim\.lr' or 'average\.lr'\?",
        ),
        ({"num_workers": 1}, r"Did you mean 'data\.num_workers'\?"),
        ({"optimizer.lr": 0.1}, r"no option 'optimizer'"),
    ],
)
def test_unknown_option_is_rejected_with_the_nearest_name(options, sentence):
    with pytest.raises(ConfigError, match=sentence):
        Config.from_options(options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"epochs": 0}, "epochs=0 is not allowed: it must be greater than 0"),
        ({"batch_size": 0}, "batch_size=0 .* greater than or equal to 1"),
        ({"batch_size": 1.5}, "batch_size=1.5 .* integer"),
        ({"seed": -1}, "seed=-1 .* greater than or equal to 0"),
        ({"seed": 2**63}, "seed=9223372036854775808 .* less than"),
        ({"optim.lr": -1}, r"optim\.lr=-1 .* greater than 0"),
        ({"optim.lr": float("nan")}, r"optim\.lr=nan .* "),
        ({"optim.lr": float("inf")}, r"optim\.lr=inf .* finite"),
        ({"optim.betas": (0.9, 1.0)}, r"optim\.betas=1.0 .* less than 1"),
        ({"optim.name": "adan"}, r"optim\.name='adan' .* 'adamw', .*'sgd' or 'sparse_adam'"),
        (
            {"optim.ns_coefficients": (1.0, 2.0)},
            r"optim\.ns_coefficients=.* it takes 3 numbers",
        ),
        ({"optim.eps": "small"}, r"optim\.eps='small' is not allowed: it must be a valid number"),
        ({"precision": "fp8"}, "precision='fp8' .* 'fp32', 'tf32', 'bf16' or 'fp16'"),
        ({"schedule.min_lr_ratio": 2}, r"schedule\.min_lr_ratio=2 .* less than or equal to 1"),
        (
            {"validation.every": "10 minutes"},
            r"validation\.every='10 minutes' .* \(epochs, steps, items\)",
        ),
        ({"checkpoint.every": "often"}, r"checkpoint\.every='often' .* such as '2 epochs'"),
        ({"schedule.warmup": "120%"}, r"schedule\.warmup='120%' .* between 0% and 100%"),
        ({"schedule.warmup": "5k%"}, r"schedule\.warmup='5k%' .* between 0% and 100%"),
        ({"schedule.min_lr_ratio": "5k%"}, r"schedule\.min_lr_ratio='5k%' .* a valid number"),
        ({"schedule.warmup": "x%"}, r"schedule\.warmup='x%' .* between 0% and 100%"),
        ({"max_grad_norm": "on"}, "max_grad_norm='on' is not allowed: .*'off'"),
        ({"logging.progress": "loud"}, r"logging\.progress='loud' .* 'quiet'"),
    ],
)
def test_invalid_value_is_rejected_with_the_allowed_range(options, sentence):
    with pytest.raises(ConfigError) as caught:
        Config.from_options(options)
    assert caught.match(rf"(?s){sentence}")


def test_each_invalid_option_has_its_own_line():
    with pytest.raises(ConfigError) as caught:
        Config(epochs=-1, batch_size=-1)
    assert len(str(caught.value).splitlines()) == 2


def test_epochs_and_max_steps_together_are_rejected():
    with pytest.raises(ConfigError, match=r"epochs=2 and max_steps=5 both .* Set one"):
        Config(epochs=2, max_steps=5)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("10%", "10%"),
        ("12.5%", "12.5%"),
        ("0", "0%"),
        ("0 steps", "0%"),
        ("100 steps", "100 steps"),
        ("2 epochs", "2 epochs"),
    ],
)
def test_warmup_is_a_percentage_or_a_duration(text, kept):
    assert Config(schedule={"warmup": text}).schedule.warmup == kept


def test_long_interval_preserves_every_digit():
    assert Config(checkpoint={"every": "1234567 steps"}).checkpoint.every == "1234567 steps"


def test_replace_options_overrides_and_unsets_options():
    config = Config(epochs=2, optim={"lr": 0.1, "eps": 1e-9})
    assert config.replace_options({"optim.lr": 0.2, "optim.eps": None}).set_options() == {
        "epochs": 2.0,
        "optim.lr": 0.2,
    }
    assert config.optim.lr == 0.1


def test_option_that_is_replaced_has_the_place_of_its_new_value():
    first = Config.from_options({"optim.lr": 0.1, "epochs": 2}, {"optim.lr": "run.toml:7"})
    again = first.replace_options({"optim.lr": 0.2})
    assert first.locations()["optim.lr"] == "run.toml:7" != again.locations()["optim.lr"]
    placed = first.replace_options({"optim.lr": 0.2}, {"optim.lr": "command line"})
    assert placed.locations()["optim.lr"] == "command line"


def test_replacing_the_run_length_unsets_its_other_option():
    assert Config(epochs=2).replace_options({"max_steps": 5}).set_options() == {"max_steps": 5}
    assert Config(max_steps=5).replace_options({"epochs": 2}).set_options() == {"epochs": 2.0}
    assert Config(max_steps=5).replace_options({"epochs": None}).set_options() == {"max_steps": 5}


def test_value_for_a_group_together_with_its_options_is_rejected():
    with pytest.raises(ConfigError, match=r"data=3 is set together with data\.shuffle"):
        Config.from_options({"data": 3, "data.shuffle": True})
