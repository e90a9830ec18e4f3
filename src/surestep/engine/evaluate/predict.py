"""Predictions: what a model says of each sample, in the order of the data."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader

from surestep.base.errors import DataError
from surestep.engine.batch import TARGETS, MicroBatch, batch_as_inputs, map_tensors
from surestep.engine.data.batch_loader import BatchLoader, make_loader
from surestep.engine.data.stream import is_stream
from surestep.engine.evaluate.evaluate import eval_mode
from surestep.engine.evaluate.mc_dropout import check_passes, dropout_modules, mean_and_std
from surestep.engine.evaluate.prediction_buffer import PredictionBuffer, flatten_outputs
from surestep.engine.losses.adapt import Loss, items_only_loss
from surestep.engine.losses.base import at_least_fp32
from surestep.engine.losses.multi import code_of_losses
from surestep.engine.metrics.base import pop_logged
from surestep.engine.model.generators import Seeded, own_generators
from surestep.engine.model.preserve import preserve_buffers
from surestep.engine.plan.plan import Plan
from surestep.engine.rng import ModelRNG, preserve_torch_rng
from surestep.engine.task.task import Task

_ROWS = 1024  # looked at once


@dataclass(frozen=True)
class Predictions:
    """What a model said of each sample of a part, in the order of the data.

    Attributes:
        arrays: by name, each with a row for each sample; above 256 MiB they are mapped to temporary
            files, which are there as long as the arrays. "index" is the sample's number in the
            part; "output" what the model returned ("output_<name>" of several); "target" what
            stands beside it in the data. Where the loss chooses among classes, "prediction" is the
            chosen one, or -1 where the outputs are not numbers. With Monte-Carlo dropout
            "output" is the mean over the passes and "spread" their standard deviation; of classes
            also "probability", the mean of the softmax, and its "entropy" in nats.
        passes: of Monte-Carlo dropout, or None.
        notices: what there is to say about them.
    """

    arrays: Mapping[str, NDArray[Any]]
    passes: int | None = None
    notices: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.arrays[name]

    def __len__(self) -> int:
        return len(self.arrays["index"])


def make_predict_loader(data: Any, part: str, *, task: Task, plan: Plan) -> BatchLoader:
    """Make the feed of a part to predict on: whole, in order, with or without targets."""
    if isinstance(data, DataLoader) and is_stream(data) and data.num_workers > 1:
        # Several workers would take turns, and the order of the stream would be lost.
        data = DataLoader(
            data.dataset,
            data.batch_size,
            num_workers=1,
            collate_fn=data.collate_fn,
            worker_init_fn=data.worker_init_fn,
        )
    lenient = replace(task, inputs=partial(_inputs_and_targets, task))
    return make_loader(
        data, part, task=lenient, loss=items_only_loss("samples"), plan=plan.single_process()
    )


def _inputs_and_targets(task: Task, batch: Any) -> tuple[Any, Any]:
    """Tell inputs from targets, which need not be there."""
    plain = task.inputs is None and task.loss is not None and task.loss != "model"
    names = (*TARGETS, *task.loss) if isinstance(task.loss, Mapping) else TARGETS
    if plain and _is_inputs_alone(batch, names):
        args, kwargs, targets = batch_as_inputs(batch)
    else:
        args, kwargs, targets = task.split_batch(batch)
    if isinstance(targets, Mapping) and targets.keys() == kwargs.keys():
        targets = None  # a batch without labels, for a model that computes its own loss
    return (kwargs or args), targets


def _is_inputs_alone(batch: Any, names: tuple[str, ...]) -> bool:
    if isinstance(batch, Mapping):
        return not any(key in names for key in batch)
    return not isinstance(batch, (tuple, list)) or len(batch) == 1


def predict(
    model: nn.Module,
    feed: BatchLoader,
    loss: Loss,
    *,
    autocast: AbstractContextManager[Any],
    passes: int | None = None,
    grad_off: Callable[[], AbstractContextManager[Any]] = torch.no_grad,
    watch: Callable[[int], object] | None = None,
    folder: Path | None = None,
) -> Predictions:
    """Return what the model says of each sample of one part, in eval mode; waits for the device.

    Args:
        model: on the feed's device.
        feed: of `prediction_feed`.
        loss: says what of the outputs is a prediction, and whether it is of classes.
        autocast: the context of a forward.
        passes: of Monte-Carlo dropout: dropout alone is in train mode. What is dropped depends on
            the seed, the pass, and the place and size of the batch.
        grad_off: the context that keeps no gradients.
        watch: called after each batch with the number of samples done.
        folder: of the temporary files of what does not fit into memory.

    Raises:
        ConfigError: fewer than two passes.
        TaskError: there is no dropout, or the outputs have no row for each sample.
        DataError: there is no sample.
    """
    check_passes(passes)
    dropping = dropout_modules(model) if passes is not None else []
    rows = PredictionBuffer(folder)
    with preserve_buffers(model), eval_mode(model), grad_off(), preserve_torch_rng(feed.device):
        for module in dropping:
            module.training = True
        randomness = ModelRNG(feed.seed, feed.device)
        own = own_generators(model, code_of_losses(loss))  # named as in training
        randomness.generators += map(Seeded, own.found)
        one = _Predictor(model, loss, autocast, randomness)
        for batch in feed.batches(epoch=0):
            for micro in batch.micro_batches:
                rows.add(
                    micro, one.mc_dropout_outputs(micro, passes) if passes else one.plain(micro)
                )
            if watch is not None:
                watch(batch.end)
        pop_logged()
    if not rows.n_samples:
        raise DataError("There is no sample to predict.")
    arrays = rows.arrays()
    return Predictions(arrays, passes, (*rows.warnings(), *_doubts(arrays)))


def _doubts(arrays: Mapping[str, NDArray[Any]]) -> Iterator[str]:
    """Say what of the predictions is not as it should be."""
    chosen = arrays.get("prediction", np.empty(0))
    if unknown := sum(
        int((chosen[first : first + _ROWS] == -1).sum()) for first in range(0, len(chosen), _ROWS)
    ):
        yield (
            f"{unknown} predictions are -1: the outputs there are not numbers. Look at the inputs "
            "and the weights."
        )
    spread = [each for name, each in arrays.items() if name.startswith("spread")]
    if spread and not any(each.any() for each in spread):
        yield (
            "The spread is 0 everywhere: the dropout modules of the model take no part in these "
            "outputs."
        )


class _Predictor:
    """Answers a micro-batch, under the seed of its place."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        autocast: AbstractContextManager[Any],
        randomness: ModelRNG,
    ) -> None:
        self.model = model
        self.loss = loss
        self.autocast = autocast
        self.randomness = randomness

    def outputs(self, micro: MicroBatch, *walk: int) -> Any:
        """Return what of the model's outputs is a prediction."""
        self.randomness.seed_micro_batch(-1, micro.position, *walk)
        with self.autocast:
            return self.loss.predictions(self.model(*micro.args, **micro.kwargs))

    def plain(self, micro: MicroBatch) -> dict[str, Any]:
        """Return the outputs, and the class where there is one."""
        outputs = self.outputs(micro)
        said = {"output": outputs}
        if self._is_of_classes(outputs):
            said["prediction"] = _chosen(outputs)
        return said

    def mc_dropout_outputs(self, micro: MicroBatch, passes: int) -> dict[str, Any]:
        """Return mean and spread over the passes; of classes their mean probability too."""

        def one_pass(number: int) -> dict[str, Tensor]:
            # Copied, since a model may write into its inputs.
            args = map_tensors(micro.args, Tensor.clone)
            kwargs = map_tensors(dict(micro.kwargs), Tensor.clone)
            outputs = self.outputs(micro._replace(args=args, kwargs=kwargs), number)
            tensors = flatten_outputs(outputs, "output")
            if self._is_of_classes(outputs):
                tensors["probability"] = at_least_fp32(outputs).softmax(dim=1)
            return tensors

        mean, spread = mean_and_std(one_pass, passes)
        chance = mean.pop("probability", None)
        said: dict[str, Any] = dict(mean)
        for name in mean:
            said[name.replace("output", "spread", 1)] = spread[name]
        if chance is not None:
            said["probability"] = chance
            said["prediction"] = _chosen(chance)
            said["entropy"] = torch.special.entr(chance).sum(dim=1)
        return said

    def _is_of_classes(self, outputs: Any) -> bool:
        scores = isinstance(outputs, Tensor) and outputs.is_floating_point()
        return scores and self.loss.kind == "classes" and outputs.dim() > 1


def _chosen(scores: Tensor) -> Tensor:
    """Return the class of the largest score, classes in dimension 1; -1 where one is NaN."""
    known = ~scores.isnan().any(dim=1)
    return scores.argmax(dim=1).where(known, -1)
