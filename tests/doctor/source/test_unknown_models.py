"""Models that a function is given: what they are used as shows that they are modules."""

import pytest

from tests.doctor.scripts import check_text

FUNCTION = """\
import torch
from torch.nn.functional import cross_entropy

def fit(encoder, train_loader, valid_loader):
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
    for epoch in range(9):
        encoder.train()
        for x, y in train_loader:
            optimizer.zero_grad()
            cross_entropy(encoder(x), y).backward()
            optimizer.step()
        {switch}
        {context}:
            for x, y in valid_loader:
                print(cross_entropy(encoder(x), y).item())
"""
CLASS = """\
import torch
from torch.nn.functional import cross_entropy

class Trainer:
    def __init__(self, encoder, train_loader, valid_loader):
        self.encoder, self.loaders = encoder, (train_loader, valid_loader)
        self.train_loader, self.valid_loader = train_loader, valid_loader
        self.optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)

    def validate(self):
        {switch}
        {context}:
            for x, y in self.valid_loader:
                print(cross_entropy(self.encoder(x), y).item())

    def fit(self):
        for epoch in range(9):
            self.encoder.train()
            for x, y in self.train_loader:
                self.optimizer.zero_grad()
                cross_entropy(self.encoder(x), y).backward()
                self.optimizer.step()
            self.validate()
"""
FORMS = {"function": FUNCTION, "class": CLASS}


def find(form, switch, context, code):
    text = form.replace("{switch}", switch).replace("{context}", context)
    name = "self.encoder" if form is CLASS else "encoder"
    return [found.confidence for found in check_text(text.replace("MODEL", name), code)]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_evaluation_of_a_given_model_builds_a_graph(form):
    assert find(form, "MODEL.eval()", "if True", "SS403") == ["certain"]
    assert find(form, "MODEL.eval()", "with torch.no_grad()", "SS403") == []


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_given_model_is_assumed_to_have_layers_with_a_mode(form):
    assert find(form, "pass", "with torch.no_grad()", "SS402") == ["assumed"]
    assert find(form, "MODEL.eval()", "with torch.no_grad()", "SS402") == []


EVALUATE = """\
import torch
from torch.nn.functional import cross_entropy

{decorator}
def evaluate(encoder, loader):
    {before}
    for x, y in loader:
        print(cross_entropy(encoder(x), y).item())
"""


def test_function_that_only_evaluates_may_be_called_without_gradients():
    text = EVALUATE.replace("{decorator}", "").replace("{before}", "encoder.eval()")
    (found,) = check_text(text, "SS403")
    assert found.confidence == "assumed"
    assert "`evaluate`" in found.assumed
    assert check_text(text.replace("encoder.eval()", "pass"), "SS403") == []
    assert check_text(text.replace("def eval", "@torch.no_grad()\ndef eval"), "SS403") == []


def test_function_that_is_called_without_gradients_is_not_reported():
    text = EVALUATE.replace("{decorator}", "").replace("{before}", "encoder.eval()")
    call = "model = torch.nn.Linear(4, 2)\nwith torch.no_grad():\n    evaluate(model, [])\n"
    assert check_text(text + call, "SS403") == []


LEFT = """\
import torch
from torch import nn
from torch.nn.functional import cross_entropy

model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
optimizer = torch.optim.Adam(model.parameters())
batches = [(torch.randn(16, 4), torch.randint(2, (16,))) for _ in range(30)]

def pause(epoch):
    model.eval()
    {pause}

model.train()
for epoch in range(2):
    for i, (x, y) in enumerate(batches[:25]):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
        if i % 10 == 9:
            pause(epoch){after}
"""
PAUSES = {
    "measured with a graph": (
        "for x, y in batches[25:]:\n        print(cross_entropy(model(x), y).item())"
    ),
    "saved": "torch.save(model.state_dict(), 'model.pt')",
    "exported": "torch.onnx.export(model, torch.randn(1, 4), 'model.onnx')",
}


@pytest.mark.parametrize("pause", PAUSES.values(), ids=PAUSES)
def test_eval_mode_is_left_on(pause):
    script = LEFT.replace("{pause}", pause).replace("{after}", "")
    (found,) = check_text(script, "SS401")
    line = script[: script.index("cross_entropy(model(x), y).b")].count("\n") + 1
    assert (found.line, found.confidence) == (line, "certain")
    back = LEFT.replace("{pause}", pause).replace("{after}", "\n            model.train()")
    assert check_text(back, "SS401") == []


def test_eval_mode_that_the_first_training_step_has_is_wanted():
    script = LEFT.replace("{pause}", "print(epoch)").replace("{after}", "")
    assert check_text(script, "SS401") == []
