"""`surestep prove RECIPE`: the laws of surestep, on the program of the user."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import tyro

from surestep.base.errors import ConfigError
from surestep.base.exit_codes import DONE, FAILED
from surestep.base.text import format_count, format_duration, print_escaped, print_json
from surestep.cli import output as show
from surestep.cli.options import CommandOptions, read_command_line
from surestep.cli.parse import split_names
from surestep.record.schemas import PROOF, PROOF_FORMAT

if TYPE_CHECKING:  # torch is imported with the recipe
    from surestep.laws.proof import Proof, Row
    from surestep.recipes.load import RecipeCall
    from surestep.record.run import Run

_SHOWN_S = 0.01
_COLUMNS = ("law", "outcome", "what was compared, or why not", "time")


@dataclass(frozen=True)
class Options(CommandOptions):
    """Train a recipe for a few steps, many times over, and compare: which laws of surestep hold?

    Attributes:
        steps: Number of steps that are compared in each run, up to 10.
        samples: Number of samples of an epoch; the default is four batches.
        minutes: Time that all of it may take.
        laws: Which laws to prove, by name, separated by commas; the default is all.
        ignore: A law that may fail, with the reason: NAME=REASON. Repeat it for several.
        data: Prove the training data alone, in seconds: order, workers, resuming, ranks.
        json: Print the result as JSON.
    """

    steps: Annotated[int, tyro.conf.arg(metavar="N")] = 10
    samples: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    minutes: Annotated[float, tyro.conf.arg(metavar="N")] = 10.0
    laws: Annotated[str | None, tyro.conf.arg(metavar="NAMES")] = None
    ignore: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=REASON")] = ()
    data: bool = False
    json: bool = False

    def check(self) -> None:
        """Check that options of runs are not set for data alone.

        Raises:
            ConfigError: one is.
        """
        defaults = Options()
        for name in ("steps", "samples", "laws", "ignore") if self.data else ():
            if getattr(self, name) != getattr(defaults, name):
                raise ConfigError(f"--{name} is for runs, and --data trains nothing: leave it out.")

    instead: ClassVar[Mapping[str, str]] = {
        "run": "A proof makes no run folder: it trains in a temporary one."
    }
    examples: ClassVar[Mapping[str, int]] = {"samples": 256}


def run(words: list[str]) -> int:
    """Prove the laws; print a table, and what is known of each law that fails."""
    call, own = read_command_line("prove", words, Options)
    with redirect_stdout(sys.stderr) if own.json else nullcontext():
        proof = prove_recipe(call, own)
    if own.json:
        from surestep.record.io import dumps

        print_json(dumps(proof.as_json(), indent=1))
    else:
        print_proof(proof)
    if proof.stopped:
        raise KeyboardInterrupt  # ends the command as in a shell
    return FAILED if proof.failed else DONE


def prove_recipe(call: RecipeCall, own: Options) -> Proof:
    """Return what holds of a recipe.

    Raises:
        ConfigError, TaskError: it cannot be trained, or an option is not valid.
    """
    from surestep.laws.prove import prove_laws
    from surestep.laws.prove_data import prove_data_of
    from surestep.laws.recipe_task import RecipeTask

    if own.data:
        return prove_data_of(RecipeTask(call), call.config, minutes=own.minutes)
    return prove_laws(
        RecipeTask(call),
        call.config,
        callbacks=call.recipe.callbacks,
        steps=own.steps,
        samples=own.samples,
        minutes=own.minutes,
        laws=None if own.laws is None else split_names(own.laws),
        ignore=_read_reasons(own.ignore),
    )


def write_proof(run: Run, proof: Proof, call: RecipeCall) -> None:
    """Write a proof into its run: which laws hold, on which code, with which versions."""
    from surestep.record.git import read_commit
    from surestep.record.io import write_json

    recipe = call.origin.recipe or {}
    about = {
        "format": PROOF_FORMAT,
        "recipe": recipe.get("sha256"),
        "git": read_commit(Path.cwd()),
    }
    write_json(run.path / PROOF, about | proof.as_json())


def _read_reasons(texts: tuple[str, ...]) -> dict[str, str]:
    reasons = {}
    for text in texts:
        name, _, reason = text.partition("=")
        if not reason:
            raise ConfigError(
                f"--ignore {text} has no reason. Write it after the name: --ignore "
                f"'{name}=known bug in our tokenizer'."
            )
        reasons[name] = reason
    return reasons


def print_proof(proof: Proof) -> None:
    """Print the table of a proof, and what is known of each law that fails."""
    if proof.stopped:
        print_escaped(f"Stopped by {proof.stopped}. This is what is known so far.")
    rows = [(row.title, row.status, _shorten(row), _format_time(row)) for row in proof.rows]
    if rows:
        show.print_table("Laws on this program", _COLUMNS, rows)
    for row in proof.failed:
        texts = {"found": row.text, "usual cause": row.cause, "what to change": row.mend}
        show.print_entry(f"{row.title} fails", {name: text for name, text in texts.items() if text})
    versions = ", ".join(f"{name} {version}" for name, version in proof.versions.items())
    steps = f"{format_count(proof.steps, 'step')} a run, " if proof.steps else ""
    samples = "" if proof.samples is None else f"{proof.samples} samples an epoch; "
    print_escaped(f"{steps}{samples}{format_duration(proof.seconds)}; {versions}.")


def _shorten(row: Row) -> str:
    if row.status != "fails" or not row.kind:
        return row.text
    return f"differs first at step {row.step}: {row.kind} ({row.value})"


def _format_time(row: Row) -> str:
    return format_duration(row.seconds) if row.seconds >= _SHOWN_S else ""
