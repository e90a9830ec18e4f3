"""Plug-ins other than strategies: one file and one entry point each."""

import importlib
import json
import re
import sys

import pytest

from surestep.base import plugins
from surestep.base.errors import ConfigError
from surestep.base.plugins import LOSSES, OPTIMIZERS, OPTIONS, SCHEDULES, STRATEGIES
from surestep.config.plugin_options import load_option
from surestep.engine.losses.registry import get_loss, loss_doc
from surestep.engine.optim.registry import optimizer_info
from surestep.engine.parallel.strategy import strategy_class
from surestep.engine.schedule.registry import schedule_info
from surestep.record.run import Run
from tests.cli.conftest import surestep as surestep
from tests.forked import python_forked
from tests.test_docs import ROOT, blocks

EXAMPLES = {
    LOSSES: "log_cosh = log_cosh:LogCosh",
    SCHEDULES: "root_decay = root_decay:root_decay\nphases = phases:phases",
    OPTIMIZERS: "sign_momentum = sign_momentum:SignMomentum",
}
LOAD = {
    LOSSES: get_loss,
    SCHEDULES: schedule_info,
    OPTIMIZERS: optimizer_info,
    STRATEGIES: strategy_class,
    OPTIONS: load_option,
}
# It takes options of built-in schedules, without the others that are checked with them.
PHASES = """
def phases(step, length, *, decay=None, three_phase=True):
    return 1.0
"""
SCRIPT = """
import json, torch, surestep
from torch import nn

torch.manual_seed(0)
x = torch.randn(64, 4)
task = surestep.Task(lambda: nn.Linear(4, 1), "log_cosh", (x, x[:, :1]))
config = surestep.Config(
    max_steps=8, batch_size=16, optim={"name": "sign_momentum", "lr": 0.1, "momentum": 0.5},
    schedule={"name": "root_decay", "warmup": "2 steps", "power": 1.0}, precision="fp32",
    logging={"progress": "quiet"}, device="cpu",
)
with surestep.prepare(task, config, run="run") as session:
    results = [(result.loss, result.lr) for result in session.steps()]
    reasons = {each.option: (each.value, each.reason) for each in session.plan.decisions}
    kind = type(session.state.optimizer).__name__
config = surestep.Config(max_steps=8, batch_size=16, schedule={"name": "phases"})
with surestep.prepare(task, config) as session:
    reasons["phases"] = session.plan.reason("schedule.decay")
print(json.dumps([results, reasons, kind], default=str))
"""


def install(folder, entries):
    """Install a package with these entry points by group, as pip would."""
    info = folder / "outside-1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    text = "\n".join(f"[{group}]\n{entry}" for group, entry in entries.items())
    (info / "entry_points.txt").write_text(text)


def write_examples(folder):
    """Write the plug-ins of docs/extending.md."""
    for block in blocks((ROOT / "docs/extending.md").read_text()):
        if (name := re.match(r"# (\w+\.py)\n", block.code)) is not None:
            (folder / name[1]).write_text(block.code)
    (folder / "phases.py").write_text(PHASES)


def clear():
    """Forget which plug-ins there are."""
    importlib.invalidate_caches()
    for function in (plugins._plugins, strategy_class, schedule_info, optimizer_info):
        function.cache_clear()


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """Return a function that installs entry points for this process."""

    def add(entries):
        install(tmp_path, entries)
        clear()

    monkeypatch.syspath_prepend(tmp_path)
    write_examples(tmp_path)
    yield add
    monkeypatch.undo()
    clear()


def test_plugins_train_by_name_and_the_plan_gives_their_reasons(tmp_path):
    write_examples(tmp_path)
    install(tmp_path, EXAMPLES)
    done = python_forked(tmp_path, "-c", SCRIPT)
    assert done.returncode == 0, done.stderr
    results, reasons, kind = json.loads(done.stdout.splitlines()[-1])
    assert kind == "SignMomentum"
    assert reasons["optim.name"][0] == "sign_momentum"
    assert reasons["optim.momentum"] == [0.5, "set in Python"]
    assert reasons["optim.weight_decay"] == [0.0, "the default of sign_momentum"]
    assert reasons["schedule.name"][0] == "root_decay"
    assert reasons["schedule.min_lr_mode"][1].startswith("the curve reaches the minimum")
    assert reasons["loss"][0].startswith("log_cosh")
    assert reasons["phases"] == "the default of phases"
    assert results[-1][0] < results[0][0]
    expected = [0.05, 0.075, *(0.1 * (1 - place / 6) for place in range(6))]
    assert [lr for _, lr in results] == pytest.approx(expected)


def test_plugin_losses_and_schedules_are_listed(outside, surestep):
    outside(EXAMPLES)
    assert "log_cosh(scale=1.0)" in surestep("losses").out
    assert loss_doc("log_cosh")["divides_by"] == "elements"
    assert "Fall late: as a root of the share that is left." in surestep("schedules").out
    assert "the default of root_decay" in surestep("schedules", "root_decay").out


@pytest.mark.parametrize(
    ("command", "group", "name"), [("losses", LOSSES, "huber"), ("schedules", SCHEDULES, "cosine")]
)
def test_broken_plugin_does_not_stop_the_list_of_others(outside, surestep, command, group, name):
    outside({group: "broken = no_such_module:anything"})
    answer = surestep(command)
    assert (answer.code, answer.err.count("\n")) == (0, 1)
    assert answer.err.startswith(f"The entry point 'broken' of {group}")
    assert name in answer.out
    assert surestep(command, "broken").code == 2


def test_plugin_optimizer_has_the_options_of_its_class(outside):
    outside(EXAMPLES)
    info = optimizer_info("sign_momentum")
    assert info.options == {"momentum": 0.9}
    assert info.purpose == "Updates of one size: the sign of the momentum."


@pytest.mark.parametrize("group", LOAD)
@pytest.mark.parametrize(
    ("module", "problem"),
    [
        ("thing = 3", r"is not an? .*, but 3\. Register an? "),
        ("import nothing_here", "cannot be loaded: ModuleNotFoundError"),
    ],
    ids=["wrong type", "broken"],
)
def test_bad_plugin_is_rejected_with_the_name_of_its_entry_point(
    outside, tmp_path, group, module, problem
):
    (tmp_path / "bad_plugin.py").write_text(module)
    sys.modules.pop("bad_plugin", None)
    outside({group: "bad = bad_plugin:thing"})
    with pytest.raises(ConfigError, match=problem) as caught:
        LOAD[group]("bad")
    assert f"The entry point 'bad' of {group} (bad_plugin:thing)" in str(caught.value)


def test_plugin_optimizer_argument_without_a_default_is_rejected(outside, tmp_path):
    (tmp_path / "needy.py").write_text(
        "import torch\nclass Needy(torch.optim.Optimizer):\n"
        "    def __init__(self, params, lr, momentum=0.9): ...\n"
    )
    outside({OPTIMIZERS: "needy = needy:Needy"})
    with pytest.raises(ConfigError, match="has no default for 'lr'"):
        optimizer_info("needy")


def test_help_works_with_broken_plugins(outside, tmp_path, surestep):
    (tmp_path / "bad_plugin.py").write_text("import nothing_here")
    outside(dict.fromkeys(LOAD, "bad = bad_plugin:thing"))
    for words in (("--help",), ("train", "--help"), ("train", "digits", "--help")):
        assert surestep(*words).code == 0
    words = ("train", "digits", "--optim.name", "bad", "--schedule.name", "bad", "--help")
    assert surestep(*words).code == 0


OPTION_SCRIPT = """
import json, sys, torch, surestep
from torch import nn

noise, *allow = sys.argv[1:]
torch.manual_seed(0)
task = surestep.Task(nn.Linear(4, 1), "mse", (torch.randn(64, 4), torch.randn(64, 1)))
config = surestep.Config(
    max_steps=4, batch_size=16, device="cpu", logging={"progress": "quiet"}, grad_noise=noise,
)
prepare = lambda: surestep.prepare(task, config, run="run", allow=allow)
with prepare() as session:
    next(session.steps())
    session.save()
    print(session.plan.grad_noise, session.plan.reason("grad_noise"))
"""
BROKEN = "[surestep.options]\ngrad_noise = grad_noise:nothing_here\n"


@pytest.fixture
def run_outside(tmp_path):
    """Return a function that runs Python in a process where the option is installed."""
    write_examples(tmp_path)
    install(tmp_path, {OPTIONS: "grad_noise = grad_noise:grad_noise"})
    (tmp_path / "train.py").write_text(OPTION_SCRIPT)
    return lambda *words: python_forked(tmp_path, *words)


def test_plugin_option_is_planned_recorded_and_compared_on_resume(run_outside, tmp_path):
    first = run_outside("train.py", "0.5")
    assert first.stdout == "0.5 set in Python\n", first.stderr
    decisions = json.loads((tmp_path / "run" / "plan.json").read_text())
    found = next(each for each in decisions if each["option"] == "grad_noise")
    assert found == {"option": "grad_noise", "value": 0.5, "reason": "set in Python"}
    changed = run_outside("train.py", "0.25")
    assert "blocked: each update would differ from those so far" in changed.stderr
    allowed = run_outside("train.py", "0.25", "grad_noise")
    assert allowed.stdout == "0.25 set in Python\n", allowed.stderr
    bad = run_outside("train.py", "-1")
    assert "grad_noise='-1' is not allowed: it must be greater than 0" in bad.stderr


def test_callback_of_a_plugin_option_is_called_in_every_run(run_outside, tmp_path):
    """Large noise in the gradients leaves another last loss; the recipe does not know of it."""
    losses = []
    for name, words in (("plain", ()), ("noisy", ("--grad-noise", "100"))):
        run = ("--run", name, "--max-steps", "3", "--max-grad-norm", "off")
        done = run_outside("-m", "surestep", "train", "spiral", *run, *words)
        assert done.returncode == 0, done.stderr
        *_, last = (event for event in Run(tmp_path / name).events() if event["event"] == "steps")
        losses.append(last["grad_norm"][-1])
    assert losses[1] > 100 > losses[0]


SAME_NAMES = {
    **{LOSSES: "huber", SCHEDULES: "cosine", OPTIMIZERS: "sgd", STRATEGIES: "ddp"},
    OPTIONS: "precision",
}


def test_plugin_with_the_name_of_a_builtin_is_ignored_with_a_warning(run_outside, tmp_path):
    install(tmp_path, {group: f"{name} = nothing_here:thing" for group, name in SAME_NAMES.items()})
    script = "import surestep\nfrom surestep.engine.losses.registry import get_loss\n"
    script += "assert type(get_loss('huber')).__name__ == 'Huber'\n"
    script += "config = surestep.Config(optim='sgd', schedule='cosine', precision='fp32')\n"
    done = run_outside("-c", script + "print(config.set_options())")
    assert "'precision': 'fp32'" in done.stdout, done.stderr
    for group, name in SAME_NAMES.items():
        text = f"The entry point '{name}' of {group} (nothing_here:thing) is ignored"
        assert done.stderr.count(text) == 1
    planned = run_outside("-m", "surestep", "plan", "spiral", "--precision", "fp32")
    assert planned.returncode == 0, planned.stderr


def test_plugin_option_is_accepted_and_explained_on_the_command_line(run_outside):
    main = ("-m", "surestep")
    shown = run_outside(*main, "train", "spiral", "--help")
    assert "--grad-noise FLOAT" in shown.stdout
    assert "Standard deviation of the noise" in shown.stdout
    typed = run_outside(*main, "plan", "spiral", "--grad-noise", "0.5", "--all")
    assert re.search(r"grad_noise[ │]+0.5[ │]+set on the command line", typed.stdout), typed.stderr
    plain = run_outside(*main, "plan", "spiral", "--all")
    assert re.search(r"grad_noise[ │]+None[ │]+not set: no noise", plain.stdout), plain.stderr
    ranks = run_outside(*main, "plan", "spiral", "--grad-noise", "0.5", "--ranks", "2")
    assert "grad_noise=0.5 is for a single process. Leave it out." in ranks.stderr


def test_broken_plugin_option_is_an_error_only_if_it_is_set(run_outside, tmp_path):
    (tmp_path / "outside-1.0.dist-info" / "entry_points.txt").write_text(BROKEN)
    main = ("-m", "surestep")
    problem = "The entry point 'grad_noise' of surestep.options (grad_noise:nothing_here)"
    for words in (("--help",), ("train", "--help"), ("train", "spiral", "--help")):
        shown = run_outside(*main, *words)
        assert shown.returncode == 0, shown.stderr
    planned = run_outside(*main, "plan", "spiral", "--all")
    assert planned.returncode == 0, planned.stderr
    assert problem in planned.stdout
    wrong = run_outside(*main, "plan", "spiral", "--grad-noise", "0.5")
    assert wrong.returncode == 2
    assert problem in wrong.stderr
    assert "cannot be loaded: AttributeError" in wrong.stderr
