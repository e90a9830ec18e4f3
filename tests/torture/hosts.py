"""Attack the services that runs and searches use: trackers, mirrors, databases and processes.

    python -m tests.torture.hosts [--rounds 1 | --minutes M] [--seed N] [--long] [ATTACK ...]

Each attack trains against real servers on loopback and compares what arrived with what the run
recorded. The table has a row for each attack: how often it was made, how many points, checkpoints
or trials were expected, lost and doubled, and what else was wrong. An attack without an effect
fails. The exit code is 1 if any attack failed. Without a time limit, each attack is made once:
about 10 minutes. With `--minutes`, rounds begin until the time is over.
"""

import argparse
import io
import os
import random
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from pathlib import Path

from tests.torture.attack import Attack, Effect, Hosts


def attacks(*, with_long: bool = False) -> dict[str, Attack]:
    """Return the attacks by name; their modules need the servers' libraries."""
    from tests.torture import host_mirrors, host_searches, host_trackers, host_wandb

    trackers = host_trackers.ATTACKS | host_wandb.ATTACKS
    known = trackers | host_mirrors.ATTACKS | host_searches.ATTACKS
    return known | host_trackers.LONG if with_long else known


def attack(made: Attack, hosts: Hosts, folder: Path, seed: int) -> Effect:
    """Make an attack without what its runs print; an exception is something wrong."""
    try:
        with redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
            return made(hosts, folder, random.Random(seed))
    except BaseException as error:  # pytest.skip() is none of Exception
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        hosts.renew()
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}:{where.lineno}"
        return Effect(wrong=[f"{type(error).__name__} in {place}: {error}"])


def attack_in_rounds(
    chosen: Mapping[str, Attack], seed: int, has_time: Callable[[int], bool]
) -> dict[str, Effect]:
    """Make the attacks, round after round while there is time; return their effects."""
    effects: dict[str, Effect] = {}
    with ExitStack() as stack:
        hosts, number = Hosts(stack), 0
        while has_time(number):
            for name, made in chosen.items():
                began = time.monotonic()
                with tempfile.TemporaryDirectory() as folder:
                    effect = attack(made, hosts, Path(folder), seed + number)
                state = "passed" if effect.passes else "FAILED"
                print(f"{name}: {state} ({time.monotonic() - began:.0f} s)", flush=True)
                effects[name] = effects[name] + effect if name in effects else effect
            number += 1
    return effects


def make_table(effects: Mapping[str, Effect]) -> Iterable[str]:
    """Yield the lines of the table, and below it what was wrong."""
    yield "| attack | times | expected | lost | doubled | wrong | |"
    yield "|---|---:|---:|---:|---:|---:|---|"
    for name, effect in effects.items():
        passes = "pass" if effect.passes else "**fail**"
        counts = effect.times, effect.expected, effect.lost, effect.doubled, len(effect.wrong)
        yield f"| {name} | {' | '.join(map(str, counts))} | {passes} |"
    for name, effect in effects.items():
        yield from (f"{name}: {text}" for text in effect.wrong)


def main(words: Sequence[str] | None = None, known: Mapping[str, Attack] | None = None) -> int:
    """Make the attacks and print the table; return the exit code.

    Args:
        words: of the command.
        known: the attacks by name; None is all of them.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.torture.hosts", description=__doc__)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--rounds", type=int, default=1, help="how often to make each attack")
    length.add_argument("--minutes", type=float, help="begin rounds until this time is over")
    parser.add_argument("--seed", type=int, default=0, help="other moments")
    parser.add_argument("--long", action="store_true", help="also attacks of 10 minutes")
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help="words of their names")
    given = parser.parse_args(words)
    if given.rounds < 1:
        parser.error(f"--rounds {given.rounds}: pass 1 or more")
    os.environ["OMP_NUM_THREADS"] = "1"
    known = attacks(with_long=given.long) if known is None else known
    chosen = {
        name: made for name, made in known.items() if all(word in name for word in given.attacks)
    }
    if not chosen:
        parser.error(f"no attack has all of {given.attacks} in its name. Known: {', '.join(known)}")
    began = time.monotonic()

    def has_time(rounds: int) -> bool:
        if given.minutes is None:
            return rounds < given.rounds
        return rounds == 0 or time.monotonic() - began < 60 * given.minutes

    effects = attack_in_rounds(chosen, given.seed, has_time)
    print("\n".join(make_table(effects)), flush=True)
    return 0 if all(effect.passes for effect in effects.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
