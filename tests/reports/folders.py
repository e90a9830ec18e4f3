"""Run folders that were never trained, for the tests of pages."""

import json
from itertools import chain

TIME = 1_700_000_000.0
HOSTILE = "</script><img src=x onerror=document.title='run'><script>document.title='run'</script>"


def log_point(first, losses, **more):
    """Return the event of a log point, at whose steps the gradient norm is ten times the loss."""
    count = len(losses)
    return {
        **{"event": "steps", "time": TIME + first + count, "first": first, "epoch": 0},
        **{"loss": losses, "grad_norm": [10 * loss for loss in losses], "lr": [0.1] * count},
        **{"items": 4.0 * count, "samples": 4 * count, "seconds": float(count)},
        **{"data_wait_s": 0.25 * count, "peak_memory": 2**20, **more},
    }


def evaluation(step, loss, **more):
    metrics = {"val/loss": loss, **more.pop("metrics", {})}
    known = {"event": "evaluation", "time": TIME + step, "step": step, "metrics": metrics}
    return {**known, "measured": "weights", "seconds": 2.0, **more}


def checkpoint(step, **more):
    known = {"event": "checkpoint", "time": TIME + step, "step": step}
    return {**known, "path": f"checkpoints/step-{step:08d}", "blocked_s": 0.5, **more}


def write_run(folder, events, *, status="finished", config=None, decided=None, **files):
    """Write a run folder.

    Args:
        folder: is made.
        events: of the run, without the first line.
        status: how it ended.
        config: the options that were set.
        decided: all options.
        files: other JSON files by name; also more of config.json as "about", and of status.json as
            "ending".
    """
    folder.mkdir(parents=True)
    about, ending = files.pop("about", {}), files.pop("ending", {})
    recipe = {"name": "digits", "path": "/home/ada/code/digits.py", "sha256": "0" * 64}
    written = {
        "config": {
            **{"format": 3, "recipe": recipe, "task": {}, "config": config or {}},
            **{"decided": decided or {}, **about},
        },
        "status": {"status": status, "monitor": ["val/loss", "min"], **_AT_END, **ending},
        **files,
    }
    for name, content in written.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    with (folder / "events.jsonl").open("w") as file:
        for event in chain([{"event": "format", "time": TIME, "version": 2}], events):
            file.write(f"{json.dumps(event)}\n")
    return folder


_AT_END = {
    **{"reason": "all steps are done", "step": 4, "epoch": 1, "steps_taken": 4, "items": 16.0},
    **{"seconds": 4.0, "data_wait_s": 1.0, "overflow": 0, "nonfinite": 0, "no_items": 0},
    **{"clipped": 0, "findings": []},
}
