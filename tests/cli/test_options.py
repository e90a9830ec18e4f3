import json
import re

import pytest

from surestep.config.config import iter_options
from tests.cli.conftest import RECIPE, STREAM

TOML = """
epochs = 3
batch_size = 6
[optim]
lr = 0.02
betas = [0.8, 0.99]
[task]
hidden = 5
act = "relu"
"""
SAID = {
    **{"epochs": "3", "batch_size": "6", "micro_batch_size": "3", "seed": "5"},
    **{"deterministic": "True", "device": "cpu", "precision": "bf16", "max_grad_norm": "0.5"},
    **{
        "on_nonfinite": "skip",
        "max_nonfinite_steps": "3",
        "optim.name": "adamw",
        "optim.lr": "3e-4",
    },
    **{"optim.weight_decay": "0.3", "optim.betas": "0.5 0.6", "optim.eps": "1e-05"},
    **{"schedule.name": "cosine", "schedule.warmup": "3 steps", "schedule.min_lr_ratio": "0.1"},
    **{"schedule.min_lr_mode": "cut", "schedule.interval": "2 steps", "data.drop_last": "True"},
    **{"data.shuffle": "False", "data.pin_memory": "False", "data.num_workers": "1"},
    **{"data.persistent_workers": "True", "data.prefetch_factor": "3"},
    **{"validation.every": "2 epochs", "validation.batch_size": "9", "validation.mode": "min"},
    **{"validation.metric": "accuracy", "early_stop.patience": "4", "early_stop.min_delta": "0.1"},
    **{"checkpoint.every": "10 minutes", "checkpoint.keep_last": "5", "checkpoint.keep_best": "0"},
    **{"logging.every": "5 items", "logging.progress": "quiet", "logging.trackers": "tensorboard"},
    **{"optim.groups": "2.* lr=0.5x", "optim.layerwise_lr_decay": "0.5"},
    **{"activation_checkpointing": "off", "checkpoint.weights": "trained"},
    **{"checkpoint.async_save": "False", "checkpoint.keep_every": "2 epochs"},
    **{"checkpoint.mirror": "/backup/run"},
}
OTHERWISE = [
    {"max_steps": "7"},
    {"limit_train_batches": "2", "limit_val_batches": "1", "max_time": "60 minutes"},
    {"validation.on_start": "True", "early_stop.patience": "4", "early_stop.start": "1 epoch"},
    {
        "logging.trackers": "mlflow",
        "logging.mlflow_model": "weights",
        "logging.mlflow_registered_model": "churn",
    },
    {"logging.per_layer": "True", "logging.histograms": "2 epochs", "logging.graph": "True"},
    {"logging.tracker_wait": "5 minutes"},
    {"parallel.strategy": "ddp", "parallel.static_graph": "True", "parallel.timeout_s": "30.0"},
    {
        "parallel.shard": "grad_op",
        "parallel.wrap_policy": "class Linear",
        "parallel.offload": "all",
    },
    {"parallel.shard": "hybrid", "parallel.shard_size": "2", "parallel.meta_init": "False"},
    {"parallel.replica_check_every": "2 epochs", "parallel.start_timeout_s": "900.0"},
    {"parallel.find_unused_parameters": "False", "parallel.sync_batchnorm": "False"},
    {"parallel.strategy": "deepspeed", "parallel.zero_stage": "3", "parallel.offload": "all"},
    {"clip_value": "0.5", "profile": "2:3", "num_threads": "2"},
    {"on_spike": "rollback", "max_rollbacks": "2"},
    {"doctor.ignore": "SS117=meant", "doctor.fail_on": "warning", "doctor.check_data": "all"},
    {"report.samples": "16"},
    {"compile": "max-autotune", "matmul_precision": "high", "sdpa_backend": "math"},
    {"cpu_allocator": "default"},
    {"cudnn_benchmark": "False", "channels_last": "False", "compile_blocks": "False"},
    {"cuda_graph": "False"},
    {"average.kind": "ema", "average.decay": "0.9", "average.warmup": "False"},
    {"average.kind": "ema", "average.start": "2 steps", "average.every": "3 steps"},
    {"average.kind": "ema", "average.buffers": "copy", "validation.weights": "both"},
    {"average.kind": "swa", "average.lr": "0.5", "average.anneal": "10%"},
    {"optim.name": "sgd", "optim.momentum": "0.5", "optim.nesterov": "True"},
    {"optim.name": "sgd", "optim.dampening": "0.5", "optim.implementation": "for_loop"},
    {"optim.name": "adam", "optim.amsgrad": "True", "optim.decoupled_weight_decay": "True"},
    {"optim.name": "nadam", "optim.momentum_decay": "0.01"},
    {"optim.name": "rmsprop", "optim.alpha": "0.5", "optim.centered": "True"},
    {"optim.name": "adadelta", "optim.rho": "0.5"},
    {"optim.name": "adagrad", "optim.lr_decay": "0.5", "optim.initial_accumulator_value": "0.1"},
    {"optim.name": "asgd", "optim.lambd": "0.1", "optim.t0": "5.0"},
    {"optim.name": "rprop", "optim.etas": "0.25 1.5", "optim.step_sizes": "1e-05 4.0"},
    {"optim.name": "adafactor", "optim.beta2_decay": "-0.5", "optim.d": "2.0"},
    {"optim.name": "adafactor", "optim.eps": "none 0.01"},
    {"optim.name": "lbfgs", "optim.max_iter": "3", "optim.max_eval": "4"},
    {"optim.name": "lbfgs", "optim.tolerance_grad": "0.1", "optim.tolerance_change": "0.2"},
    {"optim.name": "lbfgs", "optim.history_size": "3", "optim.line_search_fn": "strong_wolfe"},
    {"optim.name": "muon", "optim.ns_coefficients": "1.0 -2.0 3.0", "optim.ns_steps": "2"},
    {"optim.name": "muon", "optim.adjust_lr_fn": "original", "optim.adamw_lr": "0.1"},
    {"optim.name": "adamw8bit", "optim.min_8bit_size": "64"},
    {"precision": "fp16", "scaler.init_scale": "8", "scaler.growth_factor": "3"},
    {"schedule.name": "linear", "schedule.warmup": "5%", "schedule.warmup_start": "0.5"},
    {"schedule.name": "linear", "schedule.min_lr": "0.0001"},
    {"schedule.name": "cosine_restarts", "schedule.T_0": "2 steps", "schedule.T_mult": "3"},
    {"schedule.name": "cosine_restarts", "schedule.cycles": "2", "schedule.save_cycles": "True"},
    {"schedule.name": "step", "schedule.step_size": "50%", "schedule.gamma": "0.5"},
    {"schedule.name": "multi_step", "schedule.milestones": "2 steps,50%"},
    {"schedule.name": "polynomial", "schedule.power": "0.9"},
    {"schedule.name": "inverse_sqrt", "schedule.timescale": "2 epochs"},
    {
        **{"schedule.name": "warmup_stable_decay", "schedule.decay": "50%"},
        **{"schedule.decay_shape": "cosine"},
    },
    {
        **{"schedule.name": "one_cycle", "schedule.warmup": "0%"},  # the recipe has one
        **{"schedule.pct_start": "0.5", "schedule.div_factor": "5.0"},
        **{"schedule.final_div_factor": "50.0", "schedule.three_phase": "True"},
        **{"schedule.anneal_strategy": "linear", "schedule.cycle_momentum": "True"},
        **{"schedule.base_momentum": "0.7", "schedule.max_momentum": "0.8"},
    },
    {
        **{"schedule.name": "cyclic", "schedule.step_size_up": "25%"},
        **{"schedule.step_size_down": "2 steps", "schedule.mode": "exp_range"},
    },
    {
        **{"schedule.name": "reduce_on_plateau", "schedule.factor": "0.5"},
        **{"schedule.patience": "1", "schedule.threshold": "0.1"},
        **{"schedule.threshold_mode": "abs", "schedule.cooldown": "2"},
    },
    {"precision": "fp16", "scaler.growth_interval": "9", "scaler.backoff_factor": "0.25"},
]
LAUNCHED = {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
OVER_A_STREAM = {"max_steps": "9", "data.shuffle_buffer": "100"}
TABLE = {"parallel.deepspeed": '{"steps_per_print": 7}'}
# The plan shows their number; and images are kept of files.
BY_INDEX = {"exclude_samples": ("3", "17")}
OF_SAMPLES = {"data.keep_decoded": "8GB", "data.group_by_length": "True"}
PAIRS = ("betas", "etas", "step_sizes", "ns_coefficients", "eps")
SEVERAL = ("milestones",)
SPELT = {"SS117": "SS117=meant", "0.0003": "3e-4", "8.0": "8", "3.0": "3", "0 2": "class Linear"}


def typed(said):
    """Write options as they are typed."""
    return [
        word
        for name, value in said.items()
        for word in (
            f"--{name.replace('_', '-')}",
            *_words(name.split(".")[-1], value),
        )
    ]


def _words(name, value):
    if name in SEVERAL:
        return value.split(",")
    return value.split() if name in PAIRS else [value]


def shown(value):
    """Write a value of a plan as it was typed above."""
    if isinstance(value, list):
        between = "," if any(" " in str(each) for each in value) else " "
        text = between.join("none" if each is None else str(each) for each in value)
        return SPELT.get(text, text)
    return SPELT.get(str(value), str(value))


def decisions(answer):
    assert answer.code == 0, answer.err
    return {each["option"]: each for each in json.loads(answer.out)["decisions"]}


def test_every_option_of_the_config_can_be_typed(surestep, recipe):
    assert {name for name, _ in iter_options()} == set(SAID).union(
        *OTHERWISE, OVER_A_STREAM, BY_INDEX, OF_SAMPLES, TABLE
    )


@pytest.mark.parametrize(
    "said", [SAID, *OTHERWISE, OVER_A_STREAM], ids=lambda said: ",".join(said)[:30]
)
def test_typed_option_is_planned_and_shown_as_set_by_the_user(surestep, recipe, said, monkeypatch):
    for name, value in (
        LAUNCHED.items() if any(each.startswith("parallel.") for each in said) else ()
    ):
        monkeypatch.setenv(name, value)
    text = STREAM if said is OVER_A_STREAM else RECIPE
    found = decisions(surestep("plan", recipe(text), "--json", *typed(said)))
    for name, value in said.items():
        if name == "epochs":
            assert found["total_steps"]["value"] == 3 * 4
            continue
        decision = found["total_steps" if name == "max_steps" else name]
        assert shown(decision["value"]) in (value, f"val/{value}")
        assert decision["reason"].endswith("set on the command line")


def test_deepspeed_keys_can_be_typed_as_json_or_given_in_a_file(
    surestep, recipe, folder, monkeypatch
):
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(name, value)
    (folder / "ds_config.json").write_text(TABLE["parallel.deepspeed"])
    (folder / "run.toml").write_text("[parallel.deepspeed]\nsteps_per_print = 7\n")
    kind = ("plan", recipe(), "--json", "--parallel.strategy", "deepspeed")
    for words in (
        ("--parallel.deepspeed", TABLE["parallel.deepspeed"]),
        ("--parallel.deepspeed", "ds_config.json"),
        ("--config", "run.toml"),
    ):
        decided = decisions(surestep(*kind, *words))["parallel.deepspeed"]
        assert decided["value"]["steps_per_print"] == 7
        assert "set " in decided["reason"]


@pytest.mark.parametrize("words", [BY_INDEX["exclude_samples"], ("bad.txt",)])
def test_excluded_samples_can_be_typed_as_indices_or_given_in_a_file(
    surestep, recipe, folder, words
):
    (folder / "bad.txt").write_text("3\n17\n")
    decision = decisions(surestep("plan", recipe(), "--json", "--exclude-samples", *words))
    assert decision["exclude_samples"]["value"] == "2 of 24 samples"
    assert decision["steps_per_epoch"]["reason"] == "22 samples in batches of 8"


def test_options_of_single_samples_can_be_typed(surestep, recipe):
    text = RECIPE.replace("train=(x[:24], y[:24])", "train=list(zip(x[:24], y[:24]))")
    found = decisions(surestep("plan", recipe(text), "--json", *typed(OF_SAMPLES)))
    for name, value in OF_SAMPLES.items():
        assert shown(found[name]["value"]) == value
        assert found[name]["reason"] == "set on the command line"


def test_file_overrides_the_recipe_and_command_line_overrides_the_file(surestep, recipe, folder):
    (folder / "run.toml").write_text(TOML)
    words = ("--json", "--config", "run.toml", "--optim.lr", "0.3", "--task.act", "tanh")
    found = decisions(surestep("plan", recipe(), *words))
    shown = {name: (found[name]["value"], found[name]["reason"]) for name in found}
    assert shown["optim.lr"] == (0.3, "set on the command line")
    assert shown["optim.betas"] == ([0.8, 0.99], "set in run.toml:6")
    assert shown["batch_size"] == (6, "set in run.toml:3")
    assert shown["schedule.warmup"] == ("2 steps", "set in recipe mine")
    assert shown["optim.eps"] == (1e-08, "torch's default")


def test_task_parameters_follow_the_same_precedence(surestep, recipe, folder):
    (folder / "run.toml").write_text(TOML)
    words = ("--run", "r", "--config", "run.toml", "--task.hidden", "6")
    assert surestep("train", recipe(), *words).code == 0
    asked = json.loads((folder / "r" / "config.json").read_text())
    assert asked["task"] == {"hidden": 6, "act": "relu"}
    assert (asked["config"]["epochs"], asked["config"]["optim.lr"]) == (3, 0.02)


@pytest.mark.parametrize(
    ("words", "steps"), [(["--epochs", "3"], 9), (["--max-steps", "4"], 4), ([], 5)]
)
def test_length_on_the_command_line_overrides_the_length_in_the_file(
    surestep, recipe, folder, words, steps
):
    (folder / "run.toml").write_text("max_steps = 5")
    found = decisions(surestep("plan", recipe(), "--json", "--config", "run.toml", *words))
    assert found["total_steps"]["value"] == steps


@pytest.mark.parametrize("spelt", ["batch-size", "batch_size"])
def test_dashes_and_underscores_in_options_are_equivalent(surestep, recipe, spelt):
    found = decisions(surestep("plan", recipe(), "--json", f"--{spelt}", "12"))
    assert found["batch_size"]["value"] == 12


@pytest.mark.parametrize(
    ("word", "value", "in_json"),
    [
        ("hidden", "12", 12),
        ("act", "relu", "relu"),
        ("bias", "False", False),
        ("depth", "null", None),
        ("depth", "3", 3),
    ],
)
def test_task_parameters_are_parsed_as_their_types(surestep, recipe, folder, word, value, in_json):
    answer = surestep("train", recipe(), "--run", "r", f"--task.{word}", value)
    assert answer.code == 0, answer.err
    assert json.loads((folder / "r" / "config.json").read_text())["task"] == {word: in_json}


@pytest.mark.parametrize("option", ["--optim.lr", "--task.hidden"])
def test_none_on_the_command_line_is_a_value_and_not_the_default(surestep, recipe, option):
    answer = surestep("plan", recipe(), option, "None")
    assert answer.code == 2
    assert f"{option.removeprefix('--')}='None' is not allowed" in answer.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--epoch", "5"], "There is no option '--epoch'. Did you mean '--epochs'"),
        (["--lr", "1"], "no option '--lr'. Did you mean '--optim.lr' or '--average.lr'?"),
        (["--optm.lr", "1"], "'--optm.lr'. Did you mean '--optim.lr' or '--average.lr'?"),
        (["--optim.lrr", "1"], "There is no option '--optim.lrr'. Did you mean '--optim.lr'?"),
        (["--task.hiden", "3"], "no option '--task.hiden'. Did you mean '--task.hidden'?"),
        (["extra"], "Unrecognized options: extra"),
        (["--optim.betas", "0.9"], "it takes 2 numbers"),
        (["--optim.lr=-3"], "optim.lr='-3' is not allowed: it must be greater than 0, or 'find'."),
        (["--batch-size", "0"], "batch_size='0' is not allowed: it must be greater than or equal"),
        (["--micro-batch-size", "lots"], "it must be a valid integer, or 'fit'."),
        (["--validation.batch-size", "0"], "greater than or equal to 1, or 'fit'."),
        (["--optim.momentum", "1"], "optim.momentum='1' is not allowed: it must be less than 1."),
        (["--epochs", "many"], "epochs='many' is not allowed: it must be a valid number"),
        (["--precision", "fp8"], "it must be 'auto', 'fp32', 'tf32', 'bf16' or 'fp16'."),
        (["--validation.every", "1 minute"], "an amount and a unit (epochs, steps, items)"),
        (["--data.shuffle", "maybe"], "data.shuffle='maybe' is not allowed"),
        (["--device", "cuda:99"], "device='cuda:99' is not available. This machine has: cpu"),
        (["--epochs", "1", "--max-steps", "3"], "Set one of them."),
        (["--task.hidden", "wide"], "--task.hidden: task.hidden='wide' is not allowed: it must be"),
    ],
)
def test_bad_option_is_rejected_with_the_allowed_values(surestep, recipe, folder, words, message):
    answer = surestep("train", recipe(), *words)
    assert (answer.code, answer.out) == (2, "")
    assert message in " ".join(answer.err.split())
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "--config run.toml cannot be read: No such file or directory."),
        ("epochs = ", "--config run.toml is not TOML: Invalid value (at "),
        ("epoch = 5", "There is no option 'epoch'. Did you mean 'epochs'?"),
        (
            "[optim]\nlrr = 5",
            "There is no option 'optim.lrr'. Did you mean 'optim.lr'?",
        ),
        ("lr = 5", "There is no option 'lr'. Did you mean 'optim.lr' or 'average.lr'?"),
        ("[optimm]\nlr = 5", "There is no option 'optimm'. Did you mean 'optim'?"),
        ("optim = 5", "run.toml:1: optim.name=5 is not allowed"),
        ("[optim.lr]\nx = 5", "There is no option 'optim.lr.x'. Did you mean 'optim.lr'?"),
        ("[optim]\nlr = -1", "optim.lr=-1 is not allowed: it must be greater than 0, or 'find'."),
        ("[task]\nhiden = 5", "mine's task has no parameter 'hiden'. Did you mean 'hidden'?"),
        ("[task]\nhidden = [1]", "run.toml:2: task.hidden=[1] is not allowed"),
    ],
)
def test_bad_config_file_is_rejected(surestep, recipe, folder, text, message):
    if text is not None:
        (folder / "run.toml").write_text(text)
    answer = surestep("plan", recipe(), "--config", "run.toml")
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err


def test_all_errors_in_the_options_are_listed_together(surestep, recipe):
    words = ("--optim.lr", "-3", "--epoch", "3", "--task.dept", "2", "--batch-size")
    answer = surestep("plan", recipe(), *words)
    assert answer.code == 2
    assert [line.partition(". ")[0] for line in answer.err.splitlines()] == [
        "ConfigError: There is no option '--epoch'",
        "There is no option '--task.dept'",
        "--batch-size has no value",
        "--optim.lr: optim.lr='-3' is not allowed: it must be greater than 0, or 'find'.",
    ]


def test_all_wrong_task_parameters_are_listed_together(surestep, recipe, folder):
    (folder / "run.toml").write_text("[task]\nbias = 'maybe'\nhiden = 5\n")
    answer = surestep("plan", recipe(), "--config", "run.toml", "--task.hidden", "wide")
    assert answer.code == 2
    assert [line.partition(". ")[0] for line in answer.err.splitlines()] == [
        "RecipeError: run.toml:2: task.bias='maybe' is not allowed: it must be a valid boolean, "
        "unable to interpret input.",
        "run.toml:3: mine's task has no parameter 'hiden'",
        "--task.hidden: task.hidden='wide' is not allowed: it must be a valid integer, unable to "
        "parse string as an integer.",
    ]


def test_help_all_explains_every_option(surestep, recipe):
    answer = surestep("train", recipe(), "--help-all")
    assert (answer.code, answer.err) == (0, "")
    text = " ".join(answer.out.split())
    for name, field in iter_options():
        option = f"--{name.replace('_', '-')}"
        start = re.search(f" {re.escape(option)}(, --[a-z-]+)* ", text).end()
        end = text.find(" --", start)
        assert field.description in text[start : end if end > 0 else None]


def test_help_all_shows_what_the_recipe_sets(surestep, recipe):
    shown = " ".join(surestep("train", recipe(), "--help-all").out.split())
    for explained in (
        "Peak learning rate; find: measured first. (0.01: set by recipe mine)",
        "--task.hidden VALUE how wide the one layer is. (8: the recipe's default)",
        "--task.act VALUE tanh or relu. ('tanh': the recipe's default)",
        "--task.bias VALUE (True: the recipe's default)",
        "--run FOLDER Run folder; the default is runs/RECIPE-TIME.",
        "--overfit N Train on the same N samples until the loss is near zero, as a test.",
    ):
        assert explained in shown


def test_help_works_if_a_task_parameter_is_missing(surestep, recipe):
    text = "import surestep\nconfig = surestep.Config(epochs=1)\ndef task(hidden: int): ...\n"
    answer = surestep("train", recipe(text), "--help")
    assert answer.code == 0
    assert "--task.hidden VALUE (required)" in " ".join(answer.out.split())
