"""A small run with a mirror, and what the tests compare of it."""

import torch
from torch import nn

import surestep
from surestep.mirror.outline import complete_checkpoints, examine_mirror, open_outline
from surestep.mirror.store import Store
from surestep.record.checkpoint.discovery import list_checkpoints

STEPS = 12


def train(run, mirror=None, *, callbacks=(), seed=0, allow=(), **options):
    """Train 12 steps with dropout and shuffling; save every 3."""
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    data = (x, x.sum(1, keepdim=True))
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.2), nn.Linear(8, 1))
    task = surestep.Task(model, "mse", data, val=(x[:8], data[1][:8]))
    options = {
        **{"max_steps": STEPS, "batch_size": 8, "validation.every": "3 steps"},
        **{"checkpoint.every": "3 steps", "logging.every": "1 step", "logging.progress": "plain"},
        **options,
    }
    if mirror is not None:
        options["checkpoint.mirror"] = str(mirror)
    config = surestep.Config.from_options(options)
    return surestep.Trainer(task, config, run=run, callbacks=callbacks, allow=allow).fit()


def last_weights(run):
    """Return the last weights of a run, as bytes."""
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.2), nn.Linear(8, 1))
    run.load_model(model, which="last")
    return [p.detach().numpy().tobytes() for p in model.parameters()]


def names(folder):
    """Return the names of the published checkpoints of a run folder or a mirror on a disk."""
    return [path.name for path in list_checkpoints(folder / "checkpoints")]


def files(folder):
    """Return the bytes of each file that is copied."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in ("lock", "mirror.json")
    }


def check_mirror(address):
    """Return the checkpoints of a mirror; each byte of them must be what was written."""
    store = Store(address)
    listed = store.list()
    with open_outline(store, listed) as folder:
        paths = [folder / "checkpoints" / name for name in complete_checkpoints(listed)]
        found = list(examine_mirror(store, paths, every_byte=True))
    assert all(each.verified for each in found), found
    return [each.path.name for each in found]


def flip_byte(path):
    """Change one byte in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


class StopAt(surestep.Callback):
    """Pauses the run after a step, as a signal does."""

    def __init__(self, step):
        self.step = step

    def on_step(self, state, result):
        return surestep.Request.PAUSE if state.progress.step == self.step else None
