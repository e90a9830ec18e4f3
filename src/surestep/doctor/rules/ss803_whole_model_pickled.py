"""A whole model is pickled, so its file depends on the source that defined it.

`torch.save(model, path)` stores the import path of its class and of all its parts. The file can no
longer be loaded, or loads with wrong attributes, once a class is renamed, moved or changed.
`torch.load` rejects it by default, and `weights_only=False` runs whatever code is in the file.

Ignore it for a file that is read once, by the same version of the same source. A file that the same
run loads again is not reported.

Source: https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html

Wrong:

    import io

    import torch

    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    file = io.BytesIO()
    torch.save(model, file)

Right:

    import io

    import torch

    model = torch.nn.Linear(4, 1)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    model.load_state_dict(torch.load(file, map_location="cpu"))
"""

from collections.abc import Iterator

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.source.checkpoints import Save, find_loads, find_saves, is_same_file
from surestep.doctor.source.trace import Event, Program, Trace
from surestep.doctor.source.training import describe, is_model
from surestep.doctor.source.values import Attribute, Collection, Value

SEVERITY = "warning"
FIX = "Save model.state_dict(); to load it, create the model and call load_state_dict()."


def check(program: Program) -> Iterator[Problem]:
    """Find models that are given to `torch.save` or to pickle, alone or in a dict."""
    for trace in program.traces:
        saved = [
            (save.event, save.value)
            for save in find_saves(trace)
            if not _is_loaded_after(trace, save)
        ]
        for event, value in (*saved, *map(_pickled, trace.events)):
            if event is not None and (model := _find_model(value)) is not None:
                yield at_event(
                    event,
                    f"`{event.text}` writes the model as an object, not only its "
                    "weights: the file loads only with the same source.",
                    model=describe(model),
                )


def _is_loaded_after(trace: Trace, save: Save) -> bool:
    """Return whether the same run reads the file again, with code from the same source."""
    events = trace.events
    later = events[events.index(save.event) :]
    return any(
        load in later
        and load.call is not None
        and is_same_file(load.call.argument(0, "f"), save.path)
        for load in find_loads(trace)
    )


def _pickled(event: Event) -> tuple[Event | None, Value | None]:
    call = event.call
    is_dump = call is not None and call.path in ("pickle.dump", "joblib.dump", "dill.dump")
    return (event, call.argument(0, "obj")) if call is not None and is_dump else (None, None)


def _find_model(value: Value | None) -> Value | None:
    """Return a model that is saved as it is."""
    if isinstance(value, Collection):
        return next((m for m in map(_find_model, value.elements) if m is not None), None)
    inner = value.base if isinstance(value, Attribute) and value.name == "module" else value
    return value if is_model(inner) else None
