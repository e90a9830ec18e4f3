"""What usually makes a law fail, and what to change."""

from typing import NamedTuple


class Explanation(NamedTuple):
    """The usual cause, and its mend."""

    cause: str
    mend: str


_UNSEEDED = Explanation(
    "Something is drawn without the seed of the run: by a generator that the clock seeds, by "
    "hash() or the order of a set, in threads, or by reading memory that was never written.",
    "Draw from the global generators of torch, numpy and Python, which a run seeds. Sort what "
    "comes from a set or os.listdir, and use torch.zeros instead of torch.empty.",
)
_NOT_SAVED = Explanation(
    "Something that the step depends on is not in the checkpoint: a counter, a cache or a "
    "generator in a global, in an attribute of an object or in a closure.",
    "Compute it from the step or the index of the sample. Otherwise keep it in a buffer of the "
    "model, or give the loss, the callback or the stream state_dict() and load_state_dict().",
)
_IN_PROCESS = Explanation(
    "What the dataset returns depends on what its process has read before: on a cache, a counter "
    "or a generator in the dataset, or it changes its samples in place.",
    "Compute a sample from its index alone: copy before you change it, draw from the global "
    "generators, and cache nothing that is random.",
)
_WATCHED = Explanation(
    "Code that should only observe changes what is trained: a forward that counts or writes in "
    "eval mode too, or a metric or callback that changes the model or a global.",
    "Change state only if self.training is True, and change nothing in metrics and callbacks. If "
    "a callback should change the training, ignore this law with that reason.",
)
_ORDER = Explanation(
    "A sampler repeats or leaves out samples, or ignores the epoch or the seed.",
    "Return from samplers.custom(function) a permutation that is drawn from a generator seeded "
    "with derive_seed(seed, epoch). Use samplers.weighted if a sample may come twice.",
)
_SKIPPED = Explanation(
    "The forward, the loss or a hook changes something that a skipped step does not restore: a "
    "count or cache in a global or in an attribute.",
    "Keep it in a buffer of the model, which is restored.",
)
_SPLIT = Explanation(
    "The forward or the loss computes something over the batch that it gets: a mean, a norm, a "
    "number of samples, or a loss that is not a mean over its items.",
    "Compute each sample alone, and set Task(items=) to what the loss is a mean over. If it "
    "compares samples with each other, set Task(loss_is_separable=False).",
)
_STALL = Explanation(
    "The model, the loss or a hook reads a value from the device: .item(), print(loss), float(t), "
    "if t:, .cpu(), or an index by a mask. On a GPU, the host waits there in each step.",
    "Keep the value a tensor: torch.where instead of an if, surestep.log(name, value) instead of "
    "a print, and lengths on the host from the dataset.",
)
_PLAIN = Explanation(
    "The numbers depend on something that only one of the two has: a global or a generator that "
    "the checks of the first batch or the loading of data advance.",
    "Compute it from the step or the index of the sample, and draw from the global generators of "
    "torch, numpy and Python.",
)
_CHECKPOINT = Explanation(
    "Evaluation depends on something that no checkpoint holds, as on a count in a global or an "
    "attribute; or a metric keeps what it has seen of an earlier evaluation.",
    "Keep what the model needs in a buffer, and clear a metric in its reset().",
)
_PRECISION = Explanation(
    "The forward switches autocast off or casts, the loss is summed in 16 bits, or a hook or "
    "callback changes the learning rate at each step, also at a skipped one.",
    "Remove the casts or set precision='fp32', return the loss as float(), and let the schedule "
    "set the learning rate.",
)
_BY_KIND = {
    ("same again", "gradients"): Explanation(
        "The outputs are equal, so the backward pass is not deterministic: a kernel that adds "
        "atomically, or a hook.",
        "Set deterministic=True.",
    ),
    ("same again", "parameters"): Explanation(
        "The first weights, or what the optimizer does, are drawn without the seed of the run.",
        "Pass a function as Task(model=), so that it is called after seeding, and draw from the "
        "global generators.",
    ),
    ("resuming", "data"): _IN_PROCESS,
    ("watching", "data"): _IN_PROCESS,
}
_BY_NAME = {
    "same again": _UNSEEDED,
    "resuming": _NOT_SAVED,
    "watching": _WATCHED,
    "workers": _IN_PROCESS,
    "order": _ORDER,
    "skipping": _SKIPPED,
    "splitting": _SPLIT,
    "ranks": _SPLIT,
    "shares": _IN_PROCESS,
    "plain PyTorch": _PLAIN,
    "checkpoint": _CHECKPOINT,
    "precision": _PRECISION,
    "no stall": _STALL,
}


def explain_failure(name: str, kind: str) -> Explanation:
    """Return the usual cause and the mend.

    Args:
        name: of the law or check.
        kind: of the first value that differs; "" if it is not known.
    """
    return _BY_KIND.get((name, kind)) or _BY_NAME[name]
