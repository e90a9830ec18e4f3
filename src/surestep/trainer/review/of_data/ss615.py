"""SS615: targets that are in the inputs."""

from collections.abc import Iterator

from surestep.doctor.limits import FEWEST_OTHERS, FEWEST_TARGETS
from surestep.doctor.problem import Problem
from surestep.trainer.review.data_case import DataCase


def find(data: DataCase) -> Iterator[Problem]:
    """Find a column of the inputs that is the target, and tokens that are their own targets."""
    train = data.train
    if train.inputs is None or train.targets is None or data.loop.loader.loss.kind == "model":
        return
    values, table = train.values, train.features
    if values is not None and table is not None and table.dim() == 2 and table.shape[1] > 1:
        others = len(values) - int((values == values.mode().values).sum())
        is_varied = len(values) >= FEWEST_TARGETS and others >= FEWEST_OTHERS
        equal = (table == values.float()[:, None]).all(0).nonzero().flatten().tolist()
        if is_varied and equal and train.inputs[0].dim() == 2:
            yield Problem(
                f"Column {equal[0]} of the inputs is the target, in all {len(values)} samples that "
                "were read.",
                {"columns": equal, "samples": len(values)},
            )
    if len(train.targets) == 1 and not train.targets[0].is_floating_point():
        (targets,) = train.targets
        for tensor in train.inputs:
            is_tokens = targets.dim() == 2 and targets.shape[1] > 1 and len(targets) >= 2
            if is_tokens and tensor.shape == targets.shape and bool((tensor == targets).all()):
                yield Problem(
                    f"The targets of all {len(targets)} samples that were read are the tokens of "
                    "their own inputs: the model is to predict what it is given.",
                    {"samples": len(targets)},
                    "Shift them by one: inputs tokens[:, :-1], targets tokens[:, 1:].",
                )
