"""`python -m tests.eject.the_loop`: run the experiments of `docs/the-loop.md` again.

It takes three minutes of a CPU. Names of experiments run these alone.
"""

import sys

import torch

from tests.doctor.planted.run import check, watch_all
from tests.eject.the_loop.experiments import EXPERIMENTS, Experiment, edit, print_digits
from tests.eject.the_loop.page import PAGE, format_result, read_results, replace_experiments


def find_rules(one: Experiment) -> dict[str, set[str]]:
    """Return the rules that find a change in the source, or if none does, in a run."""
    files = {"train.py": edit(one.edits)}
    codes = check(files).codes
    if codes or one.name in ("not_finite", "counter"):  # which do not end, or end with an error
        return {"check": codes}
    (watched,) = watch_all([files])
    return {"watch": watched.codes}


def main(names: list[str]) -> None:
    """Run experiments, and write what happened to the page."""
    torch.set_num_threads(1)
    text = PAGE.read_text(encoding="utf-8")
    results = read_results(text)
    for one in EXPERIMENTS:
        if not names or one.name in names:
            before, after = one.measure(print_digits()), one.measure(edit(one.edits))
            results[one.name] = format_result(before, after, find_rules(one))
            print(f"{one.name}\n{results[one.name]}", flush=True)
            text = replace_experiments(text, lambda one: results[one.name])
            PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
