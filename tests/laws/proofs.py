"""Prove the planted and the correct programs, and print what was found.

    python -m tests.laws.proofs planted [NAME...]
    python -m tests.laws.proofs correct [NAME...]

The line of each program has the law, the step and the value that were expected, and those found. A
program is found if they are equal; the module or line that is named is printed beside them.
"""

import sys
import time

from surestep.laws.proof import Proof, Row
from surestep.laws.prove import prove_laws
from tests import tiny
from tests.laws.support.correct_programs import PROGRAMS
from tests.laws.support.more_planted_programs import MORE
from tests.laws.support.planted_programs import PLANTED, Planted


def is_found(planted: Planted, row: Row) -> bool:
    """Return whether a row names what was expected of a program."""
    return (
        row.status == "fails"
        and (row.step, row.kind) == (planted.step, planted.kind)
        and row.value.startswith(planted.value)
    )


def prove_planted(names: list[str]) -> None:
    """Prove the law of each program that is expected to fail."""
    programs = PLANTED | MORE
    names = names or list(programs)
    found = 0
    for name in names:
        planted, began = programs[name], time.monotonic()
        config = tiny.config(**planted.options)
        try:
            (row,) = prove_laws(
                planted.make_task, config, callbacks=planted.callbacks, laws=[planted.law]
            ).rows
        except Exception as error:  # a program that cannot be proved is a miss
            print(f"MISSED {name}: {error}", flush=True)
            continue
        is_right = is_found(planted, row)
        found += is_right
        print(
            f"{'found' if is_right else 'MISSED'} {name}: expected {planted.law}, step "
            f"{planted.step}, {planted.kind or 'no value'}; {row.status}, step {row.step}, "
            f"{row.kind} {row.value} {row.source} ({time.monotonic() - began:.0f} s) {row.text}",
            flush=True,
        )
    print(f"{found} of {len(names)} found")


def prove_correct(names: list[str]) -> None:
    """Prove every law of each program."""
    names = names or list(PROGRAMS)
    false = 0
    for name in names:
        began = time.monotonic()
        try:
            proof = PROGRAMS[name]()
        except Exception as error:
            print(f"ERROR {name}: {type(error).__name__}: {error}", flush=True)
            false += 1
            continue
        false += bool(proof.failed)
        print(f"{name}: {describe(proof)} ({time.monotonic() - began:.0f} s)", flush=True)
    print(f"{false} of {len(names)} have a failed law")


def describe(proof: Proof) -> str:
    """Return how many laws hold, and the others with their reasons."""
    holds = [row for row in proof.rows if row.status == "holds"]
    others = [
        f"{row.name} {row.status} ({row.text})"
        for row in proof.rows
        if row.status in ("fails", "not tested")
    ]
    return "; ".join([f"{len(holds)} hold", *others])


if __name__ == "__main__":
    {"planted": prove_planted, "correct": prove_correct}[sys.argv[1]](sys.argv[2:])
