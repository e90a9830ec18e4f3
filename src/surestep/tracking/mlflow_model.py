"""Log the model of a finished run to MLflow: a program that runs without its code, or weights."""

import inspect
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from surestep.base.errors import SurestepError
from surestep.base.secrets import describe_error
from surestep.record.run import Run
from surestep.tracking.mlflow_once import KEY, create_once
from surestep.tracking.tracker import TrackedRun

if TYPE_CHECKING:
    from torch import nn

NAME = "model"
WEIGHTS = "weights.safetensors"
_EXAMPLES = 2  # samples of the example: torch.export takes a size of 1 as fixed
# Neither is a dtype of numpy, in which MLflow's signatures are written.
_WIDER = {"bfloat16": "float32", "complex32": "complex64"}


class LoggedModel(NamedTuple):
    """The address of a model in MLflow, and why it is not a program; empty if it is."""

    uri: str
    why_weights: str


def log_model(
    client: Any, run: TrackedRun, run_id: str, *, step: int, metrics: Iterable[str], program: bool
) -> LoggedModel:
    """Log the best checkpoint of a run as a model of its MLflow run, with its signature.

    A program is written by torch.export, with MLflow's flavor for PyTorch, and loaded by
    `mlflow.pytorch.load_model`. Neither uses pickle. If the model cannot be exported, and without
    `program`, the model has the weights, for `Run(...)` or safetensors.

    Args:
        client: of MLflow.
        run: the run.
        run_id: of the MLflow run.
        step: of the best checkpoint.
        metrics: names in MLflow of the metrics of this checkpoint.
        program: try to export the program.
    """
    from mlflow.models import Model

    flavor = _Flavor(run, run_id, program)
    found = client.get_run(run_id)
    model_id = _create_model(client, found.info, step)
    _link_model(client, found, model_id, step, metrics)
    Model.log(None, flavor, model_id=model_id)
    return LoggedModel(f"models:/{model_id}", flavor.why_weights)


def _link_model(client: Any, run: Any, model_id: str, step: int, metrics: Iterable[str]) -> None:
    """Link a model to its run, and the metrics of its step to the model.

    Model.log would read all values of all metrics of the run, and fail if the model is linked.
    """
    from mlflow.entities import LoggedModelOutput, Metric

    linked = () if run.outputs is None else run.outputs.model_outputs
    if all(output.model_id != model_id for output in linked):
        client.log_outputs(run.info.run_id, [LoggedModelOutput(model_id, step=step)])
    values = [
        Metric(found.key, found.value, found.timestamp, found.step, model_id=model_id)
        for name in metrics
        for found in client.get_metric_history(run.info.run_id, name)
        if found.step == step
    ]
    client.log_batch(run.info.run_id, metrics=values)


def _create_model(client: Any, run: Any, step: int) -> str:
    """Return the id of the logged model of a checkpoint, which is created if there is none."""
    key = f"{run.run_id}-{step}"

    def search() -> list[Any]:
        found = client.search_logged_models([run.experiment_id], f"tags.`{KEY}` = '{key}'")
        return sorted(found, key=lambda model: (model.creation_timestamp, model.model_id))

    def delete(double: Any) -> None:
        client.delete_logged_model(double.model_id)

    create = partial(
        client.create_logged_model, run.experiment_id, NAME, run.run_id, tags={KEY: key}
    )
    return str(create_once(search, create, delete).model_id)


class _Flavor:
    """Writes the model folder, where MLflow calls the module of a flavor."""

    __name__ = "surestep"

    def __init__(self, run: TrackedRun, run_id: str, program: bool) -> None:
        self.run, self._run_id = run, run_id
        self.why_weights = "" if program else "logging.mlflow_model='weights'"

    def save_model(self, path: str, mlflow_model: Any, **options: Any) -> None:
        """Write the model to a new folder."""
        mlflow_model.run_id = self._run_id
        mlflow_model.signature = _signature(self.run)
        before = dict(vars(mlflow_model))
        if not self.why_weights:
            try:
                _save_program(self.run, Path(path), mlflow_model)
                return
            except Exception as error:  # of torch.export, and of the user's model
                self.why_weights = describe_error(error)
                shutil.rmtree(path, ignore_errors=True)
                vars(mlflow_model).clear()
                vars(mlflow_model).update(before | {"flavors": {}})
        _save_weights(self.run, Path(path), mlflow_model)


def _save_program(run: TrackedRun, path: Path, mlflow_model: Any) -> None:
    import mlflow.pytorch
    import numpy as np
    import torch

    if "serialization_format" not in inspect.signature(mlflow.pytorch.save_model).parameters:
        raise ValueError(f"MLflow {mlflow.__version__} would pickle the model; update it")
    if run.load_model is None:
        raise ValueError("the code of the model is not at hand")
    inputs = [] if run.signature is None else run.signature["inputs"]
    if not inputs:
        raise ValueError("what the model takes is not known")
    model = run.load_model()
    _check_positional(model, [entry["name"] for entry in inputs])
    examples = tuple(
        np.zeros([_EXAMPLES if size < 0 else size for size in entry["shape"]], entry["dtype"])
        for entry in inputs
    )
    mlflow.pytorch.save_model(
        model,
        str(path),
        mlflow_model=mlflow_model,
        signature=mlflow_model.signature,
        input_example=examples[0] if len(examples) == 1 else examples,
        pip_requirements=[f"torch=={torch.__version__.partition('+')[0]}", "numpy"],
        serialization_format="pt2",
    )


def _check_positional(model: "nn.Module", names: list[str]) -> None:
    """Check that the inputs are the first parameters of forward: a program takes them in order."""
    known: Callable[..., Any] = model.forward
    first = list(inspect.signature(known).parameters)[: len(names)]
    if first != names:
        raise ValueError(
            f"the model takes {', '.join(names)}, which are not the first parameters of its forward"
        )


def _save_weights(run: TrackedRun, path: Path, mlflow_model: Any) -> None:
    path.mkdir(parents=True, exist_ok=True)
    file = WEIGHTS
    try:
        Run(run.path).export(path / file)
    except SurestepError:
        file = "weights.pt"  # safetensors cannot hold a state that is not a dense tensor
        Run(run.path).export(path / file)
    for name in ("config.json", "plan.json", "signature.json"):
        with suppress(FileNotFoundError):
            shutil.copyfile(run.path / name, path / name)
    mlflow_model.add_flavor("surestep", weights=file, config="config.json")
    mlflow_model.save(str(path / "MLmodel"))


def _signature(run: TrackedRun) -> Any | None:
    """Return MLflow's signature; None if it is not known, or has what is not a tensor."""
    from mlflow.models import ModelSignature

    found = run.signature
    if found is None:
        return None
    inputs, outputs = _schema(found["inputs"]), _schema(found["outputs"])
    return None if inputs is None else ModelSignature(inputs, outputs)


def _schema(entries: list[dict[str, Any]]) -> Any | None:
    """Return a schema; a single tensor has no name, so that a plain array is accepted."""
    import numpy as np
    from mlflow.types import Schema, TensorSpec

    try:
        specs: list[Any] = [
            TensorSpec(
                np.dtype(_WIDER.get(entry["dtype"], entry["dtype"])),
                tuple(entry["shape"]),
                entry["name"] if len(entries) > 1 else None,
            )
            for entry in entries
        ]
    except TypeError:  # not a dtype of numpy
        return None
    return Schema(specs) if specs else None
