import pytest

import surestep
from tests import tiny


@pytest.fixture
def run(folder):
    """A run in the folder "r" with checkpoints at steps 3, 6 and 9; step 6 is the best."""
    rest = iter([0.5, 0.5, 0.9, 0.2])
    x, y = tiny.data()
    parts = {
        "val": (x[:1], y[:1]),
        "metrics": {"score": surestep.whole_set(lambda o, t: next(rest))},
    }
    said = {"epochs": 3, "validation": {"metric": "score", "mode": "max"}}
    return tiny.fit(folder / "r", parts, **said, checkpoint={"keep_last": 3})


@pytest.fixture
def flip(folder):
    """Flip a bit in a file of the run's checkpoint of a step."""

    def flipped(step, file="model.safetensors"):
        path = folder / f"r/checkpoints/step-{step:08d}" / file
        data = bytearray(path.read_bytes())
        data[-4] ^= 1
        path.write_bytes(data)

    return flipped
