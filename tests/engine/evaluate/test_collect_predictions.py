"""What is collected of predictions equals plain computations over all samples."""

import base64
import json
import math
import threading

import numpy as np
import pytest
import torch
from torch import nn

from surestep.engine.batch import MicroBatch
from surestep.engine.distributed.communicator import Communicator
from surestep.engine.evaluate import prediction_counts
from surestep.engine.evaluate.collect_predictions import PredictionCollector
from surestep.engine.losses.adapt import as_loss, as_losses

N = 200
GENERATOR = torch.Generator().manual_seed(5)
X = torch.randn(N, 6, generator=GENERATOR)
LOGITS = 2 * torch.randn(N, 5, generator=GENERATOR)
CLASSES = torch.randint(0, 5, (N,), generator=GENERATOR)
CE = nn.CrossEntropyLoss()


def micro(rows, inputs, targets, **more):
    return MicroBatch((inputs[rows],), {}, targets[rows], len(rows), len(rows), rows.start, **more)


def collect(loss, outputs, targets, *, size=32, most=4, inputs=X, ranks=1):
    """Collect in batches of a size, which several ranks take in turn."""
    parts = [as_losses(loss, {}, {}, {}) if isinstance(loss, dict) else as_loss(loss, "samples")]
    collectors = [PredictionCollector(parts[0], most) for _ in range(ranks)]
    for number, start in enumerate(range(0, len(outputs), size)):
        rows = range(start, min(start + size, len(outputs)))
        collectors[number % ranks].add(outputs[rows], micro(rows, inputs, targets))
    if ranks == 1:
        return collectors[0].gather()[0]
    return gather(collectors)


class Rank(Communicator):
    """One of several ranks in threads."""

    def __init__(self, rank, size, barrier, texts):
        super().__init__(rank, size)
        self._barrier, self._texts = barrier, texts

    def all_gather_text(self, text):
        self._texts[self.rank] = text
        self._barrier.wait(10)
        found = list(self._texts)
        self._barrier.wait(10)
        return found


def gather(collectors):
    """Return what the first of several ranks has, which all must have."""
    size = len(collectors)
    barrier, texts, found = threading.Barrier(size), [""] * size, [None] * size

    def run(rank):
        found[rank] = collectors[rank].gather(Rank(rank, size, barrier, texts))[0]

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(one == found[0] for one in found)
    return found[0]


@pytest.mark.slow("imports scikit-learn")
def test_matrix_is_that_of_scikit_learn():
    from sklearn.metrics import confusion_matrix

    found = collect(CE, LOGITS, CLASSES)
    assert found["matrix"] == confusion_matrix(CLASSES, LOGITS.argmax(1)).tolist()


def test_matrix_is_that_of_a_plain_loop():
    found = collect(CE, LOGITS, CLASSES)
    expected = np.zeros((5, 5), dtype=int)
    for target, prediction in zip(CLASSES, LOGITS.argmax(1), strict=True):
        expected[target, prediction] += 1
    assert found["matrix"] == expected.tolist()
    assert (found["right"], found["wrong"]) == (expected.trace(), N - expected.trace())
    assert (found["n_samples"], found["n_elements"], found["classes"]) == (N, N, 5)
    for target, prediction, count in found["pairs"]:
        assert target != prediction
        assert count == expected[target, prediction]


def test_calibration_is_that_of_a_plain_loop():
    found = collect(CE, LOGITS, CLASSES)["calibration"]
    confidence, predictions = LOGITS.double().softmax(1).max(1)
    error, bins = 0.0, []
    for index in range(15):
        low, high = index / 15, (index + 1) / 15
        rows = [i for i in range(N) if low < float(confidence[i]) <= high]
        if not rows:
            bins.append([0, None, None])
            continue
        mean = sum(float(confidence[i]) for i in rows) / len(rows)
        accuracy = sum(bool(predictions[i] == CLASSES[i]) for i in rows) / len(rows)
        error += len(rows) / N * abs(mean - accuracy)
        bins.append([len(rows), mean, accuracy])
    assert [one[0] for one in found["bins"]] == [one[0] for one in bins]
    for own, expected in zip(found["bins"], bins, strict=True):
        assert own[1:] == pytest.approx(expected[1:], abs=1e-6)
    assert found["ece"] == pytest.approx(error, abs=1e-6)


def test_worst_samples_are_those_of_a_sort_of_all_losses():
    found = collect(CE, LOGITS, CLASSES, most=7)
    losses = nn.functional.cross_entropy(LOGITS, CLASSES, reduction="none")
    expected = losses.argsort(descending=True, stable=True)[:7].tolist()
    worst = [found["samples"][index] for index in found["worst"]]
    assert [one["index"] for one in worst] == expected
    for one in worst:
        index = one["index"]
        assert one["loss"] == pytest.approx(float(losses[index]), rel=1e-5)
        assert one["target"] == int(CLASSES[index])
        assert one["prediction"] == int(LOGITS[index].argmax())
        assert one["confidence"] == pytest.approx(float(LOGITS[index].softmax(0).max()), rel=1e-5)
        assert one["input"]["values"] == X[index].tolist()


def test_confident_samples_are_the_wrong_ones_with_the_largest_probability():
    found = collect(CE, LOGITS, CLASSES, most=7)
    confidence, predictions = LOGITS.softmax(1).max(1)
    wrong = [i for i in range(N) if predictions[i] != CLASSES[i]]
    expected = sorted(wrong, key=lambda i: -float(confidence[i]))[:7]
    assert [found["samples"][index]["index"] for index in found["confident"]] == expected
    assert len({one["index"] for one in found["samples"]}) == len(found["samples"])


TARGETS = torch.randn(N, 2, generator=GENERATOR)
ERRORS = torch.randn(N, 2, generator=GENERATOR).exp()
KINDS = {
    "classes": (CE, LOGITS, CLASSES),
    "labels": ("multilabel", LOGITS, (LOGITS.roll(1, 0) > 0).float()),
    "numbers": ("mse", TARGETS + ERRORS, TARGETS),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("size", "ranks"), [(7, 1), (16, 2), (11, 3), (150, 3)])
def test_batch_size_and_number_of_ranks_do_not_matter(kind, size, ranks):
    assert collect(*KINDS[kind], size=size, ranks=ranks) == collect(*KINDS[kind])


def test_residuals_are_those_of_numpy():
    found = collect("mse", TARGETS + ERRORS, TARGETS)
    histogram = found["residuals"]
    first, width, counts = (histogram[name] for name in ("first", "width", "counts"))
    edges = first + width * np.arange(len(counts) + 1)
    residuals = ((TARGETS + ERRORS) - TARGETS).numpy().ravel()
    assert counts == np.histogram(residuals, edges)[0].tolist()
    assert sum(counts) == 2 * N
    assert math.log2(width).is_integer()
    assert 32 <= len(counts) <= 64


def test_residuals_that_are_all_equal_have_one_bin():
    found = collect("mse", TARGETS.round(), TARGETS.round())["residuals"]
    assert (found["first"], found["counts"]) == (0.0, [2 * N])


def test_residuals_that_are_not_finite_are_counted_apart():
    outputs = TARGETS.clone()
    outputs[3, 1], outputs[5, 0] = float("nan"), float("inf")
    found = collect("mse", outputs, TARGETS)
    assert found["not_finite"] == 2
    assert sum(found["residuals"]["counts"]) == 2 * N - 2
    assert {found["samples"][index]["index"] for index in found["worst"][:2]} == {3, 5}


def test_points_are_pairs_of_the_data_and_few():
    targets = torch.arange(3000.0).unsqueeze(1)
    found = collect("mse", targets + 0.5, targets, size=256, inputs=targets)["points"]
    assert len(found) == 500
    assert all(prediction == pytest.approx(target + 0.5, rel=1e-5) for target, prediction in found)
    assert 1200 < sum(target for target, _ in found) / 500 < 1800  # spread over the data


def test_labels_are_counted_one_by_one():
    _, outputs, targets = KINDS["labels"]
    found = collect("multilabel", outputs, targets)
    for label, tp, fp, fn, tn in found["labels"]:
        says, is_so = outputs[:, label] >= 0, targets[:, label] == 1
        counts = [says & is_so, says & ~is_so, ~says & is_so, ~says & ~is_so]
        assert [tp, fp, fn, tn] == [int(one.sum()) for one in counts]
    assert sorted(row[0] for row in found["labels"]) == [0, 1, 2, 3, 4]
    assert np.sum(found["matrix"]) == 5 * N


def pairs_of(outputs, targets):
    return set(zip(targets.tolist(), outputs.argmax(1).tolist(), strict=True))


def test_many_classes_have_the_most_frequent_errors_and_no_matrix():
    outputs = torch.randn(N, 400, generator=GENERATOR)
    targets = torch.arange(N) % 400
    targets[:50], outputs[:50, 399] = 7, 100.0
    found = collect(CE, outputs, targets)
    assert "matrix" not in found
    assert found["pairs"][0] == [7, 399, 50]
    assert len(found["pairs"]) == 50
    wrong = {pair for pair in pairs_of(outputs, targets) if pair[0] != pair[1]}
    assert found["pairs_left_out"] == len(wrong) - 50


@pytest.mark.parametrize("ranks", [1, 2])
def test_too_many_different_errors_are_not_counted(monkeypatch, ranks):
    """Neither does it depend on the ranks, each of which has fewer of them."""
    pairs = len(pairs_of(LOGITS, CLASSES))
    monkeypatch.setattr(prediction_counts, "_MOST_PAIRS", pairs)
    assert "matrix" in collect(CE, LOGITS, CLASSES, ranks=ranks)
    monkeypatch.setattr(prediction_counts, "_MOST_PAIRS", pairs - 1)
    found = collect(CE, LOGITS, CLASSES, ranks=ranks)
    assert "matrix" not in found
    assert found["why"].startswith(f"there are more than {pairs - 1} different pairs")
    assert found["calibration"]["ece"] is not None


def test_outputs_that_are_not_finite_are_the_worst():
    outputs = LOGITS.clone()
    outputs[9, 2] = float("nan")
    found = collect(CE, outputs, CLASSES)
    worst = found["samples"][found["worst"][0]]
    assert (worst["index"], worst["prediction"], worst["confidence"]) == (9, -1, None)
    assert math.isnan(worst["loss"])
    assert found["not_finite"] == 1
    assert np.sum(found["matrix"]) == N - 1


def test_pixels_are_counted_and_a_sample_lists_the_first():
    outputs, targets = torch.randn(8, 5, 6, 7), torch.randint(0, 5, (8, 6, 7))
    targets[2, :3] = -100
    found = collect(CE, outputs, targets, size=3)
    assert found["n_elements"] == 8 * 42 - 21
    assert np.sum(found["matrix"]) == found["n_elements"]
    one = next(sample for sample in found["samples"] if sample["index"] != 2)
    assert (one["elements"], one["n_kept"], len(one["target"])) == (42, 42, 32)
    index = one["index"]
    assert one["n_wrong"] == int((outputs[index].argmax(0) != targets[index]).sum())


def test_samples_whose_targets_are_all_ignored_are_not_listed():
    targets = CLASSES.clone()
    targets[10:] = -100
    found = collect(CE, LOGITS, targets, most=20)
    assert {one["index"] for one in found["samples"]} <= set(range(10))
    assert len(found["worst"]) == 10


def test_padding_is_not_counted():
    collector = PredictionCollector(as_loss(CE, "samples"), 4)
    collector.add(LOGITS[:8], micro(range(8), X, CLASSES))
    collector.add(LOGITS[:8], micro(range(8), X, CLASSES)._replace(samples=0, items=0))
    assert collector.gather()[0]["n_samples"] == 8


def test_rows_of_a_ready_batch_have_the_index_of_the_batch():
    collector = PredictionCollector(as_loss(CE, "samples"), 4)
    batch = micro(range(8), X, CLASSES, is_ready=True)._replace(samples=1, position=3)
    collector.add(LOGITS[:8], batch)
    worst = int(nn.functional.cross_entropy(LOGITS[:8], CLASSES[:8], reduction="none").argmax())
    sample = collector.gather()[0]["samples"][0]
    assert (sample["index"], sample["row"]) == (3, worst)
    assert sample["input"]["values"] == X[worst].tolist()


def test_each_of_several_losses_has_its_predictions():
    loss = as_losses({"kind": CE, "size": nn.MSELoss(), "own": lambda o, t: o.mean()}, {}, {}, {})
    collector = PredictionCollector(loss, 4)
    outputs = {"kind": LOGITS, "size": X + 1, "own": X}
    targets = {"kind": CLASSES, "size": X, "own": X}
    batch = MicroBatch((X,), {}, targets, 3 * N, N, 0, (N, 6 * N, N))
    collector.add(outputs, batch)
    kind, size, own = collector.gather()
    assert (kind["loss"], kind["kind"], kind["n_samples"]) == ("kind", "classes", N)
    assert (size["loss"], size["kind"], size["n_elements"]) == ("size", "numbers", 6 * N)
    assert own["kind"] == "none"
    assert own["why"].startswith("the loss is a custom function")


def test_shapes_that_do_not_fit_end_the_collection_only():
    found = collect("mse", torch.randn(N, 3), torch.randn(N, 2))
    assert found["kind"] == "none"
    assert found["why"].startswith(
        "collecting them failed: ValueError: outputs and targets have the shapes (32, 3)"
    )


def test_one_rank_that_fails_ends_the_collection_on_all():
    loss = as_loss("mse", "samples")
    collectors = [PredictionCollector(loss, 4), PredictionCollector(loss, 4)]
    collectors[0].add(X[:4], micro(range(4), X, X))
    collectors[1].add([X], micro(range(4), X, X))
    assert gather(collectors) == {
        "loss": "",
        "kind": "none",
        "why": "the outputs or the targets are not a tensor",
    }


def test_ranks_without_samples_add_nothing():
    assert collect(CE, LOGITS[:8], CLASSES[:8], ranks=3) == collect(CE, LOGITS[:8], CLASSES[:8])
    assert collect(CE, LOGITS[:0], CLASSES[:0], ranks=2)["samples"] == []


def input_of(inputs, **named):
    batch = MicroBatch((inputs,), named, CLASSES[:1], 1, 1, 0)
    collector = PredictionCollector(as_loss(CE, "samples"), 1)
    collector.add(LOGITS[:1], batch)
    return collector.gather()[0]["samples"][0]["input"]


def pixels_of(shown):
    data = np.frombuffer(base64.b64decode(shown["pixels"]), dtype=np.uint8)
    return data.reshape(shown["size"])


def test_picture_is_that_of_the_input():
    picture = torch.rand(1, 3, 5, 4, generator=GENERATOR)
    shown = input_of(picture)
    assert (shown["kind"], shown["shape"], shown["size"]) == ("picture", [3, 5, 4], [5, 4, 3])
    expected = np.rint(picture[0].permute(1, 2, 0).double().numpy() * 255)
    assert np.array_equal(pixels_of(shown), expected)


def test_picture_of_scaled_numbers_uses_all_shades():
    shown = input_of(torch.tensor([[[[-1.0, 0.0], [1.0, 3.0]]]]))
    assert shown["range"] == [-1.0, 3.0]
    assert pixels_of(shown)[..., 0].tolist() == [[0, 64], [128, 255]]


def test_large_picture_is_a_mean_over_blocks():
    picture = torch.randint(0, 256, (1, 1, 192, 96), generator=GENERATOR).to(torch.uint8)
    shown = input_of(picture)
    assert shown["size"] == [96, 48, 1]
    expected = picture[0, 0].double().numpy().reshape(96, 2, 48, 2).mean((1, 3))
    assert np.abs(pixels_of(shown)[..., 0] - expected).max() <= 0.5


def test_other_inputs_are_the_first_numbers():
    tokens = torch.arange(300).unsqueeze(0)
    assert input_of(tokens) == {"kind": "integers", "shape": [300], "values": list(range(128))}
    series = torch.arange(60.0).reshape(1, 20, 3)
    assert input_of(series) == {
        "kind": "numbers",
        "shape": [20, 3],
        "values": [float(i) for i in range(32)],
    }
    assert input_of(torch.tensor([2.0]), age=torch.tensor([3.0]))["values"] == [2.0, 3.0]
    assert input_of([torch.tensor(2.0)])["kind"] == "none"


def test_what_is_collected_is_json():
    found = collect(CE, LOGITS, CLASSES)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
