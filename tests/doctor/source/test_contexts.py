"""Decorators of the functions around an event are among its contexts."""

from pathlib import Path

import pytest

from surestep.doctor.source.files import Project, parse_source
from surestep.doctor.source.interpreter import follow
from surestep.doctor.source.training import is_without_grad


@pytest.mark.parametrize(
    ("decorator", "is_off"),
    [
        ("@torch.no_grad()", True),
        ("@torch.no_grad", True),
        ("@torch.inference_mode", True),
        ("@torch.compile", False),
        ("", False),
    ],
)
def test_decorator_with_or_without_parentheses_disables_gradients(decorator, is_off):
    script = f"import torch\n{decorator}\ndef evaluate(model, x):\n    print(model(x))\n"
    (trace,) = follow(parse_source(Path("script.py"), script.encode()), Project()).traces[-1:]
    shown = next(e for e in trace.events if e.call is not None and e.call.path == "print")
    assert is_without_grad(shown) is is_off
