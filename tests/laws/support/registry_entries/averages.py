"""An entry for each kind of average."""

from tests.laws.support.registry_entries import Entry, Wrong

EMA = {"kind": "ema", "decay": 0.9, "start": "2 steps"}
SWA = {"kind": "swa", "start": "50%", "every": "2 steps", "lr": 1e-3}


ENTRIES = {
    "ema": Entry(
        Wrong("average.lr=0.1 requires average.kind='swa', but", {"average": {**EMA, "lr": 0.1}}),
        {"average": EMA},
    ),
    "swa": Entry(
        Wrong(
            "average.decay=0.9 requires average.kind='ema', but", {"average": {**SWA, "decay": 0.9}}
        ),
        {"average": SWA},
    ),
}
