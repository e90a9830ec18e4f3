"""Attacks on an MLflow server while a run sends its records to it."""

import random
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import surestep
from surestep.tracking import follower
from tests.torture.attack import NO_EFFECT, Act, Attack, Effect, Hosts, Outage
from tests.tracking.proxy import Proxy, proxy_of
from tests.tracking.test_delivery import expected_points
from tests.tracking.test_mlflow import losses, only_run

QUICK = {"INTERVAL_S": 0.05, "LONGEST_PAUSE_S": 0.5}
Step = Callable[[int], None]  # called after each step


class Training(NamedTuple):
    """The training of a run: its steps, how long each lasts, and steps per log point."""

    steps: int = 90
    step_s: float = 0.03
    every: int = 2


SHORT, NINE_MINUTES = Training(), Training(steps=2400, step_s=0.22, every=1)
OUTAGE_S = 60.0  # longer than LONGEST_PAUSE_S, the longest pause between two attempts


def compare_points(url: str, run: Path) -> Effect:
    """Compare the points that an MLflow server has of a run with its events."""
    from mlflow import MlflowClient

    client = MlflowClient(url)
    found = only_run(client, run)
    arrived = Counter(losses(client, found.info.run_id))
    expected = Counter(expected_points(surestep.Run(run)))
    status = found.info.status
    return Effect(
        lost=(expected - arrived).total(),
        doubled=(arrived - expected).total(),
        wrong=[] if status == "FINISHED" else [f"the MLflow run is {status}"],
        expected=expected.total(),
    )


def train(run: Path, on_step: Step, training: Training = SHORT, **logging: str) -> None:
    """Train with these options of logging, and attack after each step."""
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    task = surestep.Task(nn.Linear(3, 1), "mse", (x, x[:, :1]), val=(x, x[:, :1]))
    options: dict[str, Any] = {"progress": "quiet", "every": f"{training.every} steps", **logging}
    config = surestep.Config(max_steps=training.steps, batch_size=32, logging=options)
    with surestep.prepare(task, config, run=run) as session:
        for result in session.steps():
            time.sleep(training.step_s)
            on_step(result.step)


def track(
    hosts: Hosts,
    folder: Path,
    on_step: Step,
    url: str,
    training: Training = SHORT,
    **pauses: float,
) -> Effect:
    """Train with MLflow, and attack after each step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", url)
        patch.setenv("MLFLOW_EXPERIMENT_NAME", "surestep")
        patch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
        for name, seconds in pauses.items():
            patch.setattr(follower, name, seconds)
        train(folder / "run", on_step, training, trackers="mlflow", mlflow_model="off")
    return compare_points(hosts.mlflow.url, folder / "run")


def interrupt(
    hosts: Hosts,
    folder: Path,
    begin: Act,
    end: Act,
    url: str,
    steps: tuple[int, int],
    training: Training = SHORT,
    **pauses: float,
) -> Effect:
    """Train during an outage of the tracker that begins and ends after these steps."""
    with pytest.MonkeyPatch.context() as patch:
        outage = Outage(patch, follower.Follower, begin, end)

        def on_step(step: int) -> None:
            if step == steps[0]:
                outage.begin()
            if step == steps[1]:
                outage.end()

        effect = track(hosts, folder, on_step, url, training, **pauses)
    effect.wrong += outage.wrong
    return effect


def through_proxy(act: Callable[[Proxy, random.Random], None]) -> Attack:
    """Return an attack by a proxy before the server, after each fifth step."""

    def made(hosts: Hosts, folder: Path, choose: random.Random) -> Effect:
        with proxy_of(hosts.mlflow.url) as proxy:

            def on_step(step: int) -> None:
                if step % 5 == 0:
                    act(proxy, choose)

            effect = track(hosts, folder, on_step, proxy.url, **QUICK)
        effect.wrong += [] if proxy.disturbed else [f"{NO_EFFECT}: no request was disturbed"]
        return effect

    return made


def outage_of_proxy(attribute: str) -> Attack:
    """Return an attack that sets an attribute of a proxy before the server for half of the run."""

    def made(hosts: Hosts, folder: Path, choose: random.Random) -> Effect:
        with proxy_of(hosts.mlflow.url) as proxy:
            begin, end = (partial(setattr, proxy, attribute, value) for value in (True, False))
            half = (SHORT.steps // 4, 3 * SHORT.steps // 4)
            return interrupt(hosts, folder, begin, end, proxy.url, half, **QUICK)

    return made


def kill_server(hosts: Hosts, folder: Path, choose: random.Random) -> Effect:
    """Kill the server in the first third of a run, and start it in the last."""
    server, third = hosts.mlflow, SHORT.steps // 3
    steps = choose.randint(2, third), choose.randint(2 * third, SHORT.steps)
    return interrupt(hosts, folder, server.kill, server.start, server.url, steps, **QUICK)


def kill_for_a_minute(hosts: Hosts, folder: Path, choose: random.Random) -> Effect:
    """Kill the server for a minute of a run, with the pauses that a run has."""
    server, kill_at = hosts.mlflow, choose.randint(10, 20)
    steps = kill_at, SHORT.steps - kill_at
    training = SHORT._replace(step_s=OUTAGE_S / (steps[1] - steps[0]))
    return interrupt(hosts, folder, server.kill, server.start, server.url, steps, training)


def kill_in_long_run(hosts: Hosts, folder: Path, choose: random.Random) -> Effect:
    """Kill the server for a minute near the end of a run of nine minutes."""
    server, outage = hosts.mlflow, round(OUTAGE_S / NINE_MINUTES.step_s)
    end_at = NINE_MINUTES.steps - choose.randint(0, outage // 4)
    steps = end_at - outage, end_at
    return interrupt(hosts, folder, server.kill, server.start, server.url, steps, NINE_MINUTES)


def lose_answers(proxy: Proxy, choose: random.Random) -> None:
    """Lose the answer of a kind of request that the run makes."""
    kinds = sorted({kind for kind in proxy.requests if not kind.startswith("GET")})
    if kinds:
        proxy.lost.append(choose.choice(kinds))


def slow_down(proxy: Proxy, choose: random.Random) -> None:
    """Delay each answer by up to half a second."""
    proxy.delay_s = choose.uniform(0.1, 0.5)


ATTACKS: dict[str, Attack] = {
    "MLflow server killed and started": kill_server,
    "MLflow server killed for 60 s": kill_for_a_minute,
    "MLflow server slow": through_proxy(slow_down),
    "MLflow answers lost": through_proxy(lose_answers),
    "MLflow server hangs": outage_of_proxy("is_hanging"),
    "MLflow answers 503": outage_of_proxy("is_unavailable"),
}
LONG: dict[str, Attack] = {"MLflow server killed for 60 s of a run of 9 min": kill_in_long_run}
