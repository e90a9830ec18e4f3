"""Attacks on the workers, the trials and the database of a search."""

import json
import random
import time
from collections import Counter
from pathlib import Path

from tests.torture.attack import NO_EFFECT, Attack, Effect, Hosts
from tests.tuning.kills import STEP_S, Search, kill_search, results
from tests.tuning.kills_recipe import HANGS

KILLS, TRIALS = 2, 4
# Without a database: 15 s for an evaluation, 15 s for the end of a trial, 30 s for other workers.
ENDS_S = 60.0


def count_trials(study: Path, states: tuple[str, ...] = ("finished",)) -> Effect:
    """Count the trials of a report that are missing or there twice."""
    trials = json.loads((study / "report.json").read_text())["trials"]
    numbers = Counter(trial["number"] for trial in trials if trial["state"] in states)
    runs = Counter(trial["run"] for trial in trials)
    doubled = numbers.total() - len(numbers) + runs.total() - len(runs)
    lost = len(set(range(TRIALS)) - numbers.keys())
    return Effect(lost=lost, doubled=doubled, expected=TRIALS)


def search_folder(folder: Path, name: str) -> Path:
    """Create the folder of a search."""
    (folder / name).mkdir()
    return folder / name


def kill_workers(hosts: Hosts, folder: Path, choose: random.Random) -> Effect:
    """Kill the command of a search and its workers in the background."""
    for name in ("plain", "killed"):
        search_folder(folder, name)
    wrong = kill_search(folder, KILLS, TRIALS, choose.randrange(1000))
    effect = count_trials(folder / "killed" / "study")
    effect.wrong += wrong
    return effect


def hang_trials(hosts: Hosts, folder: Path, choose: random.Random) -> Effect:
    """Hang the trials with the recipe's own width, as the first: they fail, and others finish."""
    more, hidden = ("--trial-timeout", "20s"), "8"
    search = Search(search_folder(folder, "hung"), TRIALS, more=more, environment={HANGS: hidden})
    try:
        code = search.finish()
    finally:
        search.close()
    trials = json.loads((search.study / "report.json").read_text())["trials"]
    effect = count_trials(search.study, ("finished", "failed"))
    hung = [trial for trial in trials if str(trial["params"]["task.hidden"]) == hidden]
    for trial in trials:
        expected = "failed" if trial in hung else "finished"
        if trial["state"] != expected or (trial in hung and "timeout" not in trial["reason"]):
            effect.wrong.append(f"trial {trial['number']}: {trial['state']} ({trial['reason']})")
    if not hung or code != 1:
        effect.wrong.append(f"exit code {code} with {len(hung)} trials that hang")
    return effect


def stop_database(hosts: Hosts, folder: Path, choose: random.Random) -> Effect:
    """Stop PostgreSQL until the search ends, and start it; the same command continues."""
    plain = Search(search_folder(folder, "plain"), TRIALS)
    more = ("--storage", hosts.postgres.create_database())
    search = Search(search_folder(folder, "stopped"), TRIALS, STEP_S, more=more)
    try:
        codes = [plain.finish()]
        search.start()
        search.wait_for_training()
        time.sleep(choose.uniform(0.0, 2.0))
        hosts.postgres.kill()
        began = time.monotonic()
        try:
            search.finish()
        finally:
            hosts.postgres.restart()
        ended_s = time.monotonic() - began
        codes.append(search.finish())
    finally:
        plain.close()
        search.close()
    effect = count_trials(search.study)
    log = search.log.read_text()
    if "Each request is repeated" not in log or "To continue once it does" not in log:
        effect.wrong.append(f"{NO_EFFECT}: the search reported no failure")
    if ended_s > ENDS_S:
        effect.wrong.append(f"the search ended after {ended_s:.0f} s without the database")
    if codes != [0, 0]:
        effect.wrong.append(f"exit codes {codes}")
    if results(search.study) != results(plain.study):
        effect.wrong.append("the results differ from those of a search that was not attacked")
    return effect


ATTACKS: dict[str, Attack] = {
    "search workers killed": kill_workers,
    "trials hang": hang_trials,
    "PostgreSQL stopped during a search": stop_database,
}
