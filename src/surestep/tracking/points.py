"""From an event of a run to the values that trackers record."""

from collections.abc import Iterator, Mapping
from typing import Any

from surestep.tracking.tracker import Histogram, Point


def read_points(event: Mapping[str, Any]) -> Iterator[Point]:
    """Yield the points of an event: of log points, evaluations and sizes that fit in memory.

    A log point has the means over its steps, at its last step. A logged value that is called "loss"
    is "train/logged_loss". Tables, such as confusion matrices, are left out.
    """
    if event["event"] == "evaluation" and (values := numbers_of(event["metrics"])):
        yield Point(event["step"], event["time"], values)
    if event["event"] == "micro_batch":
        split = event.get("split")
        name = "micro_batch_size" if split is None else f"micro_batch_size/{split}"
        yield Point(event["step"], event["time"], {name: float(event["size"])})
    if event["event"] == "steps" and event["loss"]:
        last, layers = event["first"] + len(event["loss"]) - 1, event.get("layers", {"step": 0})
        norms = _layer_norms(layers)
        if norms and layers["step"] != last:
            yield Point(layers["step"], event["time"], norms)
            norms = {}
        yield Point(last, event["time"], _log_point(event) | norms)


def _log_point(event: Mapping[str, Any]) -> dict[str, float]:
    seconds = event["seconds"]
    logged = dict(event.get("logged", {}))
    if "loss" in logged:
        logged["logged_loss"] = logged.pop("loss")
    series = {
        "train/loss": event["loss"],
        "grad_norm": event["grad_norm"],
        **{f"train/{name}": entries for name, entries in logged.items()},
    }
    values = {name: _mean(entries) for name, entries in series.items()}
    values |= {"lr": _mean(event["lr"][-1:]), "epoch": float(event["epoch"])}
    values |= {f"lr/{name}": float(rate) for name, rate in event.get("group_lr", {}).items()}
    values["memory/peak"] = event.get("peak_memory")
    if seconds > 0:
        values["throughput/items_per_s"] = float(event["items"]) / seconds
        values["throughput/samples_per_s"] = event["samples"] / seconds
        values["time/data_wait_share"] = event["data_wait_s"] / seconds
    return {name: value for name, value in values.items() if value is not None}


def _layer_norms(layers: Mapping[str, Any]) -> dict[str, float]:
    """Return the norms of a step as "weight_norm/LAYER" and so on."""
    return {
        f"{kind}/{layer}": float(norm)
        for kind, norms in layers.items()
        if kind != "step"
        for layer, norm in norms.items()
    }


def read_histograms(event: Mapping[str, Any]) -> dict[str, Histogram]:
    """Return the histograms of an event, by "weights/LAYER" and "gradients/LAYER"."""
    return {
        f"{kind}/{layer}": Histogram(
            float(found["min"]),
            float(found["max"]),
            found["counts"],
            float(found["sum"]),
            float(found["sum_squares"]),
        )
        for kind in ("weights", "gradients")
        for layer, found in event[kind].items()
    }


def numbers_of(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics that are numbers; NaN and infinity are text in JSON."""
    return {
        name: float(value)
        for name, value in metrics.items()
        if value is not None and not isinstance(value, list)
    }


def _mean(entries: list[Any]) -> float | None:
    """Return the mean of the steps that have a value; None if there are none."""
    known = [float(entry) for entry in entries if entry is not None]
    return sum(known) / len(known) if known else None
