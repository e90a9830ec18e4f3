"""A run of an older version resumes only if its items are counted as before."""

import json

import pytest
import torch

import surestep
from surestep.base.errors import RunError
from tests import tiny

X, Y = tiny.data(24)
JOINED = [(x, y.repeat(1 + row % 3)) for row, (x, y) in enumerate(zip(X, Y, strict=True))]


def join(samples):
    x, labels = zip(*samples, strict=True)
    return torch.stack(x), torch.cat(labels)


def of_samples(outputs, labels):
    return outputs.logsumexp(1).mean()


def stack(samples):
    x, labels = zip(*samples, strict=True)
    return torch.stack(x), torch.stack([label[0] for label in labels])


def unfinished(folder, collate):
    """Train a step, and remove what older versions did not record."""
    parts = {"loss": of_samples, "train": JOINED, "collate_fn": collate}
    with tiny.prepare(folder, parts) as session:
        next(session.steps())
        session.save()
    path = folder / "config.json"
    known = json.loads(path.read_text())
    assert known.pop("items") == 2
    path.write_text(json.dumps(known))
    return parts


def test_run_of_an_older_version_that_counted_other_items_is_blocked(tmp_path):
    parts = unfinished(tmp_path, join)
    with pytest.raises(RunError) as caught:
        tiny.prepare(tmp_path, parts)
    text = str(caught.value)
    assert "  items" in text
    assert "8 in the first micro-batch" in text
    assert "the loss would be divided by another number than so far" in text
    assert "--allow items" in text
    surestep.prepare(tiny.task(**parts), tiny.config(), run=tmp_path, allow=("items",)).close()
    assert json.loads((tmp_path / "config.json").read_text())["items"] == 2
    tiny.prepare(tmp_path, parts).close()


def test_run_of_an_older_version_that_counted_the_same_items_resumes(tmp_path):
    parts = unfinished(tmp_path, stack)
    tiny.prepare(tmp_path, parts).close()
