"""Orders of the training data, each a function of place: `surestep.samplers`.

Each gives the index of the sample at every position of an epoch from (seed, epoch) alone. So a run
goes on in the middle of an epoch, and the number of workers does not matter.

| order | each epoch |
|---|---|
| `shuffled()` | every sample once, in a new order: the default |
| `sequential()` | every sample once, as stored |
| `weighted(weights)` | samples drawn by weight, as torch's WeightedRandomSampler draws them |
| `balanced()` | samples drawn so that each class comes equally often |
| `by_length(lengths)` | every sample once, in batches of similar length |
| `mixed(shares)` | several datasets, each by its share |
| `own(function)` | what a function of (seed, epoch) says |
"""

from surestep.engine.data.samplers.basic import sequential as sequential
from surestep.engine.data.samplers.basic import shuffled as shuffled
from surestep.engine.data.samplers.length import by_length as by_length
from surestep.engine.data.samplers.mixtures import mixture as mixture
from surestep.engine.data.samplers.user_function import custom as custom
from surestep.engine.data.samplers.weights import balanced as balanced
from surestep.engine.data.samplers.weights import weighted as weighted

__all__ = ["balanced", "by_length", "custom", "mixture", "sequential", "shuffled", "weighted"]
