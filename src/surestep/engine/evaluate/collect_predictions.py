"""What a report shows of the predictions of an evaluation, collected while it runs.

There is no forward pass for it, nothing is drawn, and nothing that the evaluation uses changes. The
memory is bounded: counts, and the samples with the largest losses or the most confident errors.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from surestep.engine.batch import MicroBatch
from surestep.engine.distributed.communicator import ALONE, Communicator
from surestep.engine.evaluate.prediction_counts import (
    STATISTICS,
    Positions,
    Statistic,
    round_digits,
)
from surestep.engine.evaluate.sample_inputs import describe_input
from surestep.engine.evaluate.sample_predictions import (
    Rows,
    find_kind,
    predict_rows,
    why_not_shown,
)
from surestep.engine.losses.adapt import Loss
from surestep.engine.losses.multi import named_losses, split_heads

_ELEMENTS = 32  # of a sample that are listed
_Key = tuple[int, int]  # index, row or -1


class PredictionCollector:
    """Collects the predictions of one evaluation of one validation set.

    Args:
        loss: of the Task.
        most: how many of the worst samples, and how many of the most confident errors, are kept.
    """

    def __init__(self, loss: Loss, most: int) -> None:
        self._loss, self._most = loss, most
        self.clear()

    def clear(self) -> None:
        """Forget what was collected."""
        self._heads = {name: _Head(part, self._most) for name, part in named_losses(self._loss)}

    def add(self, outputs: Any, micro: MicroBatch) -> None:
        """Add a micro-batch; one without samples is padding, and is not counted."""
        if not micro.samples or not micro.items:
            return
        for head in split_heads(self._loss, outputs, micro):
            self._heads[head.name].add(head.outputs, head.micro_batch)

    def gather(self, world: Communicator = ALONE) -> list[dict[str, Any]]:
        """Return what all ranks collected, for each loss; all ranks call it together.

        Returns:
            For each loss its name as "loss" ("" of a single one), its "kind" ("classes", "labels",
            "numbers" or "none", then with "why"), counts, and "samples", of which "worst" and
            "confident" are indices.
        """
        found = []
        for name, head in self._heads.items():
            with world.long_timeout():
                found.append({"loss": name, **head.gather(world)})
        return found


class _Head:
    """The predictions by one loss."""

    def __init__(self, loss: Loss, most: int) -> None:
        self._loss, self._most = loss, most
        self._kind = find_kind(loss)
        self._why = why_not_shown(loss)
        made = () if self._kind is None else STATISTICS[self._kind]
        self._statistics: list[Statistic] = [make() for make in made]
        self._extremes = {"worst": _Extremes(most)}
        if self._kind in ("classes", "labels"):
            self._extremes["confident"] = _Extremes(most)
        self._samples = self._elements = 0

    def add(self, outputs: Any, micro: MicroBatch) -> None:
        """Add a micro-batch; what does not fit ends the collection, not the evaluation."""
        if self._why:
            return
        outputs, targets = self._loss.predictions(outputs), micro.targets
        if not (isinstance(outputs, Tensor) and isinstance(targets, Tensor)):
            self._why = "the outputs or the targets are not a tensor"
            return
        if not outputs.is_floating_point() or outputs.dim() == 0 or targets.dim() == 0:
            self._why = "the outputs are not numbers with a row for each sample"
            return
        try:
            if self._kind != "classes" and outputs.shape != targets.shape:
                shapes = f"{tuple(outputs.shape)} and {tuple(targets.shape)}"
                raise ValueError(f"outputs and targets have the shapes {shapes}")
            rows = predict_rows(self._loss, outputs, targets)
            at = _positions(micro, len(rows.kept))
            for statistic in self._statistics:
                statistic.add(rows, at)
            self._add_samples(rows, at, micro)
        except (RuntimeError, ValueError, IndexError, TypeError, MemoryError) as error:
            # Shapes that only this loss understands, or memory that ran out.
            self._why = f"collecting them failed: {type(error).__name__}: {error}"[:300]

    def _add_samples(self, rows: Rows, at: Positions, micro: MicroBatch) -> None:
        has_items = rows.kept.any(1)
        self._samples += len(has_items)
        self._elements += int(rows.kept.sum())
        scores = {"worst": rows.losses.nan_to_num(nan=math.inf, posinf=math.inf, neginf=-math.inf)}
        if rows.confidence is not None:
            confidence = rows.confidence.nan_to_num(nan=0.0)
            scores["confident"] = _wrong_confidence(rows, confidence)
            is_wrong = scores["confident"] >= 0
        else:
            is_wrong = has_items
        chosen = {"worst": has_items, "confident": is_wrong}

        def describe(row: int) -> dict[str, Any]:
            return _describe(rows, row, scores.get("confident"), micro)

        for name, extremes in self._extremes.items():
            extremes.add(scores[name], chosen[name], at, describe)

    def gather(self, world: Communicator) -> dict[str, Any]:
        """Return what all ranks collected."""
        own = {
            "why": self._why,
            "samples": self._samples,
            "elements": self._elements,
            "counts": [statistic.to_json() for statistic in self._statistics],
            "keys": {name: extremes.keys() for name, extremes in self._extremes.items()},
        }
        ranks = [json.loads(text) for text in world.all_gather_text(json.dumps(own))]
        why = next((rank["why"] for rank in ranks if rank["why"]), "")
        if why or self._kind is None:
            return {"kind": "none", "why": why}
        result: dict[str, Any] = {"kind": self._kind}
        for name in ("samples", "elements"):
            result[f"n_{name}"] = sum(rank[name] for rank in ranks)
        for index, statistic in enumerate(self._statistics):
            result |= statistic.merge([rank["counts"][index] for rank in ranks])
        chosen = {
            name: _first([key for rank in ranks for key in rank["keys"][name]], self._most)
            for name in self._extremes
        }
        return result | self._list_samples(chosen, world)

    def _list_samples(
        self, chosen: Mapping[str, Sequence[_Key]], world: Communicator
    ) -> dict[str, Any]:
        """Return the chosen samples, which the ranks that read them describe, each once."""
        wanted = list(dict.fromkeys(key for keys in chosen.values() for key in keys))
        own = {
            wanted.index(key): sample
            for extremes in self._extremes.values()
            for key, sample in extremes.samples()
            if key in wanted
        }
        described: dict[int, Any] = {}
        for text in world.all_gather_text(json.dumps(list(own.items()))):
            described |= dict(json.loads(text))
        samples = []
        for number, (index, row) in enumerate(wanted):
            position = {"index": index} if row < 0 else {"index": index, "row": row}
            samples.append({**position, **described[number]})
        indices = {name: [wanted.index(key) for key in keys] for name, keys in chosen.items()}
        return {"samples": samples, **indices}


class _Extremes:
    """The samples with the largest scores, the first ones of equal scores."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: list[tuple[float, _Key, dict[str, Any]]] = []  # by -score

    def add(
        self,
        scores: Tensor,
        chosen: Tensor,
        at: Positions,
        describe: Callable[[int], dict[str, Any]],
    ) -> None:
        """Add the chosen samples of a micro-batch; only those that are kept are described."""
        rows = chosen.nonzero().flatten()
        values = -scores[rows].cpu().double().numpy()
        first, listed = np.argsort(values, kind="stable")[: self._most].tolist(), rows.tolist()
        found = [(float(values[i]), at.key(listed[i]), listed[i]) for i in first]
        both = sorted(one[:2] for one in (*self._kept, *found))
        keys = {key for _, key in both[: self._most]}
        new = [(score, key, describe(row)) for score, key, row in found if key in keys]
        old = [one for one in self._kept if one[1] in keys]
        self._kept = sorted([*old, *new], key=lambda one: one[:2])

    def keys(self) -> list[tuple[float, _Key]]:
        """Return the negative score and the key of each sample."""
        return [(score, key) for score, key, _ in self._kept]

    def samples(self) -> list[tuple[_Key, dict[str, Any]]]:
        """Return what was described of each sample."""
        return [(key, sample) for _, key, sample in self._kept]


def _first(keys: Sequence[Any], most: int) -> list[_Key]:
    """Return the keys of the largest scores of all ranks."""
    return [(index, row) for _, (index, row) in sorted(keys)[:most]]


def _positions(micro: MicroBatch, rows: int) -> Positions:
    """Return where the rows of the outputs are in the set."""
    if micro.is_ready or rows != micro.samples:
        return Positions(np.full(rows, micro.position), by_row=True)
    return Positions(np.arange(micro.position, micro.position + rows), by_row=False)


def _wrong_confidence(rows: Rows, confidence: Tensor) -> Tensor:
    """Return the confidence of the most confident error of each sample; -1 without an error."""
    return confidence.where(rows.is_wrong, -1.0).amax(1)


def _describe(
    rows: Rows, row: int, wrong_confidence: Tensor | None, micro: MicroBatch
) -> dict[str, Any]:
    """Return what the report shows of a sample."""
    elements = rows.targets.shape[1]
    targets, predictions = (
        [_plain(value) for value in tensor[row, :_ELEMENTS].tolist()]
        for tensor in (rows.targets, rows.predictions)
    )
    found: dict[str, Any] = {"loss": round_digits(float(rows.losses[row]))}
    if elements == 1:
        found |= {"target": targets[0], "prediction": predictions[0]}
    else:
        found |= {"target": targets, "prediction": predictions, "elements": elements}
    if rows.confidence is not None:
        assert wrong_confidence is not None
        value = float(rows.confidence[row, 0] if elements == 1 else wrong_confidence[row])
        found["confidence"] = round_digits(value) if value >= 0 else None
        if elements > 1:
            found["n_wrong"] = int(rows.is_wrong[row].sum())
            found["n_kept"] = int(rows.kept[row].sum())
    return {**found, "input": describe_input(micro, row, len(rows.kept))}


def _plain(value: float) -> float:
    return value if isinstance(value, int) else round_digits(value)
