"""Law 9 on resume: a change that is allowed has its effect, whichever option it is.

Every option of the Config is changed between two starts of a run. One that changes the numbers is
seen in the state after the next steps, beside a run that is resumed without the change. One that
acts elsewhere is seen there. One that cannot change on resume is refused.
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
from tests.laws.support.option_values import AS_SAID, ONLY_VALUE, WISHES, Wish, task_of
from tests.laws.support.tasks import snapshot, with_batchnorm
from tests.laws.test_law_9_honest import held

SAVED_AT, END = 2, 6


def convolution() -> nn.Module:
    image = nn.Sequential(nn.Unflatten(1, (1, 2, 5)), nn.Conv2d(1, 3, 1))
    return nn.Sequential(image, nn.Flatten(), nn.Linear(30, 3))


# A wish of the table that four steps of this run do not show is said otherwise here.
EMA = {"average.kind": "ema", "average.warmup": False}
SHOWN: dict[str, dict[str, Any]] = {
    "optim.decoupled_weight_decay": {"along": {"optim.name": "nadam", "optim.weight_decay": 0.5}},
    "optim.t0": {"said": 1.0},
    "optim.step_sizes": {"said": (0.5, 1.0)},
    "optim.tolerance_change": {"said": 1e9},
    "optim.history_size": {"said": 1},
    "schedule.min_lr_mode": {"along": {"schedule.name": "cosine", "schedule.min_lr_ratio": 0.5}},
    "average.decay": {"along": EMA},
    "average.buffers": {"along": EMA, "parts": {"model": with_batchnorm()}},
    "channels_last": {"parts": {"model": convolution()}},
}
ALSO_ALLOWED = {  # options that follow from the one that is changed
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


# Where an option acts that moves no number of this run: a function of the open session.
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
LENGTHS = ("epochs", "max_steps")  # another length changes the schedule: test_law_2_extending
RANKS = "parallel."  # seen where there are several: tests/multi_rank
SLOW = ("compile", "compile_blocks")


def wish_of(option: str) -> Wish:
    return replace(WISHES[option], **SHOWN.get(option, {}))


def open_session(
    folder: Path, wish: Wish, said: dict[str, Any], allow: tuple[str, ...] = ()
) -> Session:
    usual = {"max_steps": END, "batch_size": 16, "logging.progress": "quiet"}
    parts = {name: deepcopy(part) for name, part in wish.parts.items()}
    return surestep.prepare(
        task_of(**parts), Config.from_options({**usual, **said}), run=folder, allow=allow
    )


def finish(session: Session) -> dict[str, Tensor]:
    """Train to the end; return everything that steps move."""
    with session:
        list(session.steps())
        return snapshot(session)


def start(folder: Path, wish: Wish) -> None:
    """Save the first steps of a run in which the option is not changed yet."""
    with open_session(folder / "same", wish, {**wish.along, **wish.otherwise}) as session:
        steps = session.steps()
        for _ in range(SAVED_AT):
            next(steps)
        session.save()
    shutil.copytree(folder / "same", folder / "changed")


def differ(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() != b.keys() or any(not torch.equal(a[name], b[name]) for name in a)


def cases(*kinds: str) -> list[str]:
    return [
        name
        for name, _ in iter_options()
        if resume_effect(name).effect in kinds
        and name not in (*LENGTHS, *SLOW, *ONLY_VALUE)
        and not name.startswith(RANKS)
    ]


def check_change(option: str, folder: Path) -> None:
    """Resume a run with another value of the option, and see its effect."""
    wish = wish_of(option)
    start(folder, wish)
    same = open_session(folder / "same", wish, {**wish.along, **wish.otherwise})
    if option in ELSEWHERE:
        with same:
            before = deepcopy(ELSEWHERE[option](same))
    else:
        unchanged = finish(same)
    allow = (option, *ALSO_ALLOWED.get(option, ()))
    now = open_session(folder / "changed", wish, {**wish.along, option: wish.said}, allow)
    if option in ELSEWHERE:
        with now:
            assert ELSEWHERE[option](now) != before
    else:
        assert differ(unchanged, finish(now)), f"a change of {option} does nothing"


@pytest.mark.parametrize("option", cases("blocked"))
def test_allowed_change_is_seen_in_the_next_steps(tmp_path, option):
    check_change(option, tmp_path)


@pytest.mark.parametrize("option", cases("safe", "not bitwise"))
def test_change_that_needs_no_permission_is_taken_over(tmp_path, option):
    wish = wish_of(option)
    start(tmp_path, wish)
    at = wish.at or option.replace(".", "_")
    with open_session(tmp_path / "changed", wish, {**wish.along, option: wish.said}) as session:
        planned = wish.said if wish.planned is AS_SAID else wish.planned
        assert held(session.plan, at) == planned
        assert session.state.progress.step == SAVED_AT
        next(iter(session.steps()))


@pytest.mark.parametrize("option", cases("incompatible"))
def test_change_that_can_have_no_effect_is_refused(tmp_path, option):
    wish = wish_of(option)
    start(tmp_path, wish)
    with pytest.raises(RunError, match=rf"{option} .* incompatible: "):
        open_session(tmp_path / "changed", wish, {**wish.along, option: wish.said}, (option,))


def test_rate_of_rprop_cannot_change_since_only_its_first_step_uses_it(tmp_path):
    wish = Wish(0.5, along={"optim.name": "rprop"})
    start(tmp_path, wish)
    with pytest.raises(RunError, match=r"optim.lr .* incompatible: it sets the initial state"):
        open_session(tmp_path / "changed", wish, {**wish.along, "optim.lr": 0.5}, ("optim.lr",))


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) + self.b(x)


@pytest.mark.parametrize("name", ["optim.weight_decay", "optim.betas", "optim.amsgrad"])
def test_options_of_one_of_several_optimizers_change(tmp_path, name):
    def task(**said: Any) -> surestep.Task:
        torch.manual_seed(0)
        model = Sum()

        def step(turn: Any) -> None:
            for micro in turn.micro_batches("a", "b"):
                out = model(*micro.args)
                turn.backward(nn.functional.cross_entropy(out, micro.targets), micro)
            turn.step("a")
            turn.step("b")

        first = surestep.Optim(**{"name": "adam", "weight_decay": 0.1, **said})
        return surestep.Task(
            model,
            nn.CrossEntropyLoss(),
            tiny.data(),
            step=step,
            optimizers={"a": first, "b": surestep.Optim()},
        )

    option = name.partition(".")[2]
    said = {option: {"weight_decay": 0.9, "betas": (0.5, 0.6), "amsgrad": True}[option]}
    config = tiny.config(max_steps=4)
    with surestep.prepare(task(), config, run=tmp_path / "same") as session:
        next(iter(session.steps()))
        session.save()
    shutil.copytree(tmp_path / "same", tmp_path / "changed")
    unchanged = finish(surestep.prepare(task(), config, run=tmp_path / "same"))
    allow = (f"optimizers.a.{name}",)
    now = surestep.prepare(task(**said), config, run=tmp_path / "changed", allow=allow)
    assert now.state.optimizers["a"].param_groups[0][option] == said[option]
    assert now.state.optimizers["b"].param_groups[0]["betas"] == (0.9, 0.999)
    assert differ(unchanged, finish(now))


def test_cycled_momentum_leaves_the_momentum_of_the_config_behind(tmp_path):
    along = {"optim.name": "sgd", "optim.momentum": 0.9, "schedule.name": "one_cycle"}
    wish = Wish(False, along=along)
    start(tmp_path, wish)
    said = {**along, "schedule.cycle_momentum": False}
    session = open_session(tmp_path / "changed", wish, said, ("schedule.cycle_momentum",))
    with session:
        next(iter(session.steps()))
        assert session.optimizer.param_groups[0]["momentum"] == 0.9


def test_option_that_the_optimizer_moves_itself_is_resumed(tmp_path):
    class Growing(torch.optim.SGD):
        """Changes an option of its own in each step, as Prodigy does with `d`."""

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
