"""A value that may be None is used as what it is otherwise."""

from pathlib import Path

from surestep.doctor.source.files import Project, parse_source
from surestep.doctor.source.interpreter import follow
from surestep.doctor.source.training import find_actions

SCRIPT = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda") if torch.cuda.is_available() else None
loss = model(torch.randn(8, 4)).mean()
if scaler is not None:
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""


def test_method_of_an_optional_object_is_one_call():
    file = parse_source(Path("script.py"), SCRIPT.encode())
    (trace,) = follow(file, Project()).traces
    kinds = [action.kind for action in find_actions(trace)]
    assert kinds == ["backward", "scaler_step", "update"]
