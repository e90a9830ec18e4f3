"""The share of clipped steps and the validation loss at several limits of the gradient norm.

    OMP_NUM_THREADS=1 python -m benchmarks.clipping --seeds 3 --folder clipping
    OMP_NUM_THREADS=1 python -m benchmarks.clipping --folder clipping t5 vit

It trains the built-in recipes and four models of transformers with `max_grad_norm` 1, 5 and off,
and prints a table. Three recipes have fewer steps than by default, which would take hours. A run
that has ended in the folder is not trained again.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

LIMITS = ("1", "5", "off")
RECIPES = ("digits", "spiral", "tabular", "imbalanced", "finetune", "distill", "hf")
SHORTER = {"gan": "--max-steps 2000", "segment": "--epochs 4", "chars": "--max-steps 200"}
MODELS = ("gpt2", "bert", "t5", "vit")
FILE = Path(__file__).with_name("small_transformers.py")


def commands() -> dict[str, list[str]]:
    """Return the words of the command that trains each of them."""
    found = {name: [name] for name in RECIPES}
    found |= {name: [str(FILE), "--task.model", name] for name in MODELS}
    return found | {name: [name, *options.split()] for name, options in SHORTER.items()}


def train(words: list[str], limit: str, seed: int, run: Path) -> tuple[float, float]:
    """Train, unless it was done; return the share of clipped steps and the last validation loss."""
    status = run / "status.json"
    if not status.exists() or json.loads(status.read_text())["status"] != "finished":
        options = ["--max-grad-norm", limit, "--seed", str(seed), "--run", str(run)]
        command = [sys.executable, "-m", "surestep", "train", *words, *options]
        ended = subprocess.run(command, capture_output=True, text=True)
        if ended.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{ended.stderr}")
    found = json.loads(status.read_text())
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    losses = [
        event["metrics"]["val/loss"]
        for event in events
        if event["event"] == "evaluation" and "val/loss" in event["metrics"]
    ]
    return (found["clipped"] or 0) / max(found["steps_taken"], 1), losses[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("clipping"))
    parser.add_argument("names", nargs="*", help="which of them; all if there is none")
    given = parser.parse_args()
    heads = [f"clipped at {limit} | val loss" for limit in LIMITS[:-1]]
    print(f"| | {' | '.join(heads)} | val loss, off |\n|---|{'---|' * 5}", flush=True)
    known = commands()
    for name in given.names or known:
        words, cells = known[name], []
        for limit in LIMITS:
            runs = [
                train(words, limit, seed, given.folder / f"{name}-{limit}-{seed}")
                for seed in range(given.seeds)
            ]
            losses = [loss for _, loss in runs]
            share = statistics.mean(share for share, _ in runs)
            if limit != "off":
                cells.append(f"{share:.0%}")
            cells.append(f"{statistics.mean(losses):.4g} ({min(losses):.4g} to {max(losses):.4g})")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
