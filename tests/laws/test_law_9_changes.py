"""Law 9 on resume: an allowed change of any option takes effect.

The tests change every option of the Config between two starts of a run. An option that affects
the numbers must change the state after the next steps, compared with a run resumed without the
change. Other options are checked on the open session. A change that is impossible is rejected.
"""

import shutil
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import surestep
from surestep.base.errors import RunError
from surestep.config.config import Config, iter_options
from surestep.trainer.config_diff import resume_effect
from surestep.trainer.session import Session
from tests import tiny
from tests.laws.support.option_values import (
    ONLY_VALUE,
    OPTION_VALUES,
    SAME_VALUE,
    OptionValue,
    task_of,
)
from tests.laws.support.tasks import snapshot, with_batchnorm
from tests.laws.test_law_9_honest import held

SAVED_AT, END = 2, 6


def convolution() -> nn.Module:
    image = nn.Sequential(nn.Unflatten(1, (1, 2, 5)), nn.Conv2d(1, 3, 1))
    return nn.Sequential(image, nn.Flatten(), nn.Linear(30, 3))


# Other values for options whose effect four steps of this run do not show.
EMA = {"average.kind": "ema", "average.warmup": False}
SHOWN: dict[str, dict[str, Any]] = {
    "optim.decoupled_weight_decay": {"along": {"optim.name": "nadam", "optim.weight_decay": 0.5}},
    "optim.t0": {"value": 1.0},
    "optim.step_sizes": {"value": (0.5, 1.0)},
    "optim.tolerance_change": {"value": 1e9},
    "optim.history_size": {"value": 1},
    "schedule.min_lr_mode": {"along": {"schedule.name": "cosine", "schedule.min_lr_ratio": 0.5}},
    "average.decay": {"along": EMA},
    "average.buffers": {"along": EMA, "parts": {"model": with_batchnorm()}},
    "channels_last": {"parts": {"model": convolution()}},
}
ALSO_ALLOWED = {  # options that follow from the changed one
    "average.kind": ("validation.weights",),
    "clip_value": ("max_grad_norm",),
    "schedule.T_0": ("schedule.cycles",),
    "schedule.cycles": ("schedule.T_0",),
}


def settings_of_process() -> list[Any]:
    return [
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
        torch.backends.cuda.flash_sdp_enabled(),
    ]


def schedule_of(session: Session) -> Any:
    return session.plan.schedule


# For options that change no number of this run: where the open session shows the change.
ELSEWHERE: dict[str, Callable[[Session], Any]] = {
    **dict.fromkeys(("deterministic", "matmul_precision"), lambda _: settings_of_process()),
    "sdpa_backend": lambda _: settings_of_process(),
    **dict.fromkeys(
        (f"schedule.{name}" for name in ("factor", "patience", "threshold", "cooldown")),
        schedule_of,
    ),
    **dict.fromkeys(("schedule.threshold_mode", "schedule.save_cycles"), schedule_of),
    "limit_val_batches": lambda session: session.plan.limit_val_batches,
    "validation.weights": lambda session: session.plan.validation_weights,
    "validation.metric": lambda session: session.plan.validation_metric,
    "validation.mode": lambda session: session.plan.validation_mode,
    **dict.fromkeys(
        (f"scaler.{name}" for name in ("growth_factor", "growth_interval", "backoff_factor")),
        lambda session: session.state.scaler.state_dict(),
    ),
}
LENGTHS = (
    "epochs",
    "max_steps",
)  # a different length changes the schedule: see test_law_2_extending
RANKS = "parallel."  # needs several ranks: see tests/multi_rank
SLOW = ("compile", "compile_blocks")
MLFLOW = "logging.mlflow_"  # their tracker would write to a store: see tests/tracking


def case_of(option: str, folder: Path) -> OptionValue:
    if option == "checkpoint.mirror":  # the open session writes there
        return OptionValue(str(folder / "mirror"))
    return replace(OPTION_VALUES[option], **SHOWN.get(option, {}))


def open_session(
    folder: Path, case: OptionValue, options: dict[str, Any], allow: tuple[str, ...] = ()
) -> Session:
    usual = {"max_steps": END, "batch_size": 16, "logging.progress": "quiet"}
    parts = {name: deepcopy(part) for name, part in case.parts.items()}
    return surestep.prepare(
        task_of(**parts), Config.from_options({**usual, **options}), run=folder, allow=allow
    )


def finish(session: Session) -> dict[str, Tensor]:
    """Train to the end; return all state that steps change."""
    with session:
        list(session.steps())
        return snapshot(session)


def start(folder: Path, case: OptionValue) -> None:
    """Save the first steps of a run before the option changes."""
    with open_session(folder / "same", case, {**case.along, **case.otherwise}) as session:
        steps = session.steps()
        for _ in range(SAVED_AT):
            next(steps)
        session.save()
    shutil.copytree(folder / "same", folder / "changed")


Begin = Callable[[Path, OptionValue], dict[str, Tensor] | None]


def start_alone(folder: Path, case: OptionValue) -> None:
    """Start a run that no other test uses; the end of its unchanged run is not known."""
    start(folder, case)


@pytest.fixture(scope="module")
def begin(tmp_path_factory: pytest.TempPathFactory) -> Begin:
    """Return a function that copies a start, and returns the end of its unchanged run.

    Cases with the same options before the change, and the usual task, have one start.
    """
    made: dict[str, tuple[Path, dict[str, Tensor]]] = {}

    def copy_start(folder: Path, case: OptionValue) -> dict[str, Tensor] | None:
        if case.parts:
            return start_alone(folder, case)
        options = {**case.along, **case.otherwise}
        if (key := repr(sorted(options.items()))) not in made:
            first = tmp_path_factory.mktemp("start")
            start(first, case)
            made[key] = first, finish(open_session(first / "same", case, options))
        first, end = made[key]
        for name in ("same", "changed"):
            shutil.copytree(first / "changed", folder / name)
        return end

    return copy_start


def differ(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() != b.keys() or any(not torch.equal(a[name], b[name]) for name in a)


def cases(*kinds: str) -> list[str]:
    return [
        name
        for name, _ in iter_options()
        if resume_effect(name).effect in kinds
        and name not in (*LENGTHS, *SLOW, *ONLY_VALUE)
        and not name.startswith((RANKS, MLFLOW))
    ]


def check_change(option: str, folder: Path, begin: Begin = start_alone) -> None:
    """Resume a run with a different value of an option, and check its effect."""
    case = case_of(option, folder)
    unchanged = begin(folder, case)
    if unchanged is None or option in ELSEWHERE:
        same = open_session(folder / "same", case, {**case.along, **case.otherwise})
        if option in ELSEWHERE:
            with same:
                before = deepcopy(ELSEWHERE[option](same))
        else:
            unchanged = finish(same)
    allow = (option, *ALSO_ALLOWED.get(option, ()))
    now = open_session(folder / "changed", case, {**case.along, option: case.value}, allow)
    if option in ELSEWHERE:
        with now:
            assert ELSEWHERE[option](now) != before
    else:
        assert differ(unchanged, finish(now)), f"a change of {option} does nothing"


@pytest.mark.filterwarnings("ignore:The train stream gives other samples")
@pytest.mark.parametrize("option", cases("blocked"))
def test_allowed_change_is_seen_in_the_next_steps(tmp_path, begin, option):
    check_change(option, tmp_path, begin)


@pytest.mark.parametrize("option", cases("safe", "not bitwise"))
def test_change_that_needs_no_permission_is_applied(tmp_path, begin, option):
    case = case_of(option, tmp_path)
    begin(tmp_path, case)
    at = case.at or option.replace(".", "_")
    with open_session(tmp_path / "changed", case, {**case.along, option: case.value}) as session:
        planned = case.value if case.planned is SAME_VALUE else case.planned
        assert held(session.plan, at) == planned
        assert session.state.progress.step == SAVED_AT
        next(iter(session.steps()))


@pytest.mark.parametrize("option", cases("incompatible"))
def test_change_without_an_effect_is_rejected(tmp_path, option):
    case = case_of(option, tmp_path)
    start(tmp_path, case)
    with pytest.raises(RunError, match=rf"{option} .* incompatible: "):
        open_session(tmp_path / "changed", case, {**case.along, option: case.value}, (option,))


def test_rate_of_rprop_cannot_change_since_only_its_first_step_uses_it(tmp_path):
    case = OptionValue(0.5, along={"optim.name": "rprop"})
    start(tmp_path, case)
    with pytest.raises(RunError, match=r"optim.lr .* incompatible: it sets the initial state"):
        open_session(tmp_path / "changed", case, {**case.along, "optim.lr": 0.5}, ("optim.lr",))


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) + self.b(x)


@pytest.mark.parametrize("name", ["optim.weight_decay", "optim.betas", "optim.amsgrad"])
def test_options_of_one_of_several_optimizers_change(tmp_path, name):
    def task(**optim: Any) -> surestep.Task:
        torch.manual_seed(0)
        model = Sum()

        def step(manual_step: Any) -> None:
            for micro in manual_step.micro_batches("a", "b"):
                out = model(*micro.args)
                manual_step.backward(nn.functional.cross_entropy(out, micro.targets), micro)
            manual_step.step("a")
            manual_step.step("b")

        first = surestep.Optim(**{"name": "adam", "weight_decay": 0.1, **optim})
        return surestep.Task(
            model,
            nn.CrossEntropyLoss(),
            tiny.data(),
            step=step,
            optimizers={"a": first, "b": surestep.Optim()},
        )

    option = name.partition(".")[2]
    change = {option: {"weight_decay": 0.9, "betas": (0.5, 0.6), "amsgrad": True}[option]}
    config = tiny.config(max_steps=4)
    with surestep.prepare(task(), config, run=tmp_path / "same") as session:
        next(iter(session.steps()))
        session.save()
    shutil.copytree(tmp_path / "same", tmp_path / "changed")
    unchanged = finish(surestep.prepare(task(), config, run=tmp_path / "same"))
    allow = (f"optimizers.a.{name}",)
    now = surestep.prepare(task(**change), config, run=tmp_path / "changed", allow=allow)
    assert now.state.optimizers["a"].param_groups[0][option] == change[option]
    assert now.state.optimizers["b"].param_groups[0]["betas"] == (0.9, 0.999)
    assert differ(unchanged, finish(now))


def test_cycled_momentum_leaves_the_momentum_of_the_config_behind(tmp_path):
    along = {"optim.name": "sgd", "optim.momentum": 0.9, "schedule.name": "one_cycle"}
    case = OptionValue(False, along=along)
    start(tmp_path, case)
    options = {**along, "schedule.cycle_momentum": False}
    session = open_session(tmp_path / "changed", case, options, ("schedule.cycle_momentum",))
    with session:
        next(iter(session.steps()))
        assert session.optimizer.param_groups[0]["momentum"] == 0.9


def test_option_that_the_optimizer_changes_is_resumed(tmp_path):
    class Growing(torch.optim.SGD):
        """Changes one of its options in every step, as Prodigy does with `d`."""

        def step(self, closure: Any = None) -> Any:
            super().step(closure)
            for group in self.param_groups:
                group["weight_decay"] *= 1.5

    def prepare(folder: Path) -> Session:
        torch.manual_seed(0)
        made = lambda groups: Growing(groups, lr=0.1, weight_decay=0.01)  # noqa: E731
        return tiny.prepare(folder, {"optimizer": made}, max_steps=END)

    whole = finish(prepare(tmp_path / "whole"))
    with prepare(tmp_path / "run") as session:
        next(iter(session.steps()))
        session.save()
    assert not differ(whole, finish(prepare(tmp_path / "run")))
