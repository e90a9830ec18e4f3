"""Sampling orders of the training data, each a function of (seed, epoch): `surestep.samplers`.

A run can resume in the middle of an epoch, and the number of workers does not change the order.

| sampler | each epoch |
|---|---|
| `shuffled()` | every sample once, in a new random order: the default |
| `sequential()` | every sample once, in stored order |
| `weighted(weights)` | samples drawn by weight, as torch's WeightedRandomSampler draws them |
| `balanced()` | samples drawn so that all classes are equally frequent |
| `by_length(lengths)` | every sample once, in batches of similar length |
| `mixture(shares)` | several datasets, each with its share |
| `custom(function)` | the indices that a function of (seed, epoch) returns |
"""

from typing import TYPE_CHECKING

from surestep.base.lazy_names import import_lazily

if TYPE_CHECKING:
    from surestep.engine.data.samplers.basic import custom as custom
    from surestep.engine.data.samplers.basic import sequential as sequential
    from surestep.engine.data.samplers.basic import shuffled as shuffled
    from surestep.engine.data.samplers.length import by_length as by_length
    from surestep.engine.data.samplers.mixtures import mixture as mixture
    from surestep.engine.data.samplers.weights import balanced as balanced
    from surestep.engine.data.samplers.weights import weighted as weighted

_HOMES = {
    **dict.fromkeys(("custom", "sequential", "shuffled"), "basic"),
    **dict.fromkeys(("balanced", "weighted"), "weights"),
    **{"by_length": "length", "mixture": "mixtures"},
}
__all__ = ["balanced", "by_length", "custom", "mixture", "sequential", "shuffled", "weighted"]
__getattr__ = import_lazily(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
