"""Models that a function is given with an annotation: the class of the project is followed."""

import pytest

from surestep.doctor.cache import ResultCache
from surestep.doctor.check_files import check_files

MODEL = """\
import torch
from torch import nn

class Speaker(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, width), nn.Dropout(0.1), nn.Linear(width, 4))

    def forward(self, x):
        return (self.body(x) - x).pow(2).mean()

    @torch.no_grad()
    def sample(self, x):
        self.eval()
        return self.body(x)
"""
TRAINER = """\
from torch.optim import Adam
from speech.model import Speaker

class Trainer:
    def __init__(self, speaker: {annotation}, loader):
        self.speaker, self.loader = speaker, loader
        self.optimizer = Adam(speaker.parameters())

    def train(self):
        self.speaker.train()
        for step, x in enumerate(self.loader):
            self.optimizer.zero_grad()
            self.speaker(x).backward()
            self.optimizer.step()
            if step % 100 == 0:
                print(self.speaker.sample(x))
                {after}
"""


@pytest.fixture
def find(tmp_path, monkeypatch):
    """Return a function that writes the files and returns the lines of SS401 in the trainer."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "src" / "speech"
    folder.mkdir(parents=True)

    def run(annotation, after="pass", model=MODEL):
        (folder / "model.py").write_text(model)
        text = TRAINER.replace("{annotation}", annotation).replace("{after}", after)
        (folder / "trainer.py").write_text(text)
        (report,) = check_files([(folder / "trainer.py", ("SS401",))], ResultCache(None))
        return [(found.line, found.confidence) for found in report.findings]

    return run


@pytest.mark.parametrize("annotation", ["Speaker", "'Speaker'", "Speaker | None"])
def test_method_of_an_annotated_model_is_followed(find, annotation):
    assert find(annotation) == [(13, "certain")]
    assert find(annotation, after="self.speaker.train()") == []


@pytest.mark.parametrize("annotation", ["object", "list[Speaker]", "unknown.Speaker"])
def test_other_annotations_say_nothing(find, annotation):
    assert find(annotation) == []


def test_annotated_class_with_another_below_it_is_not_followed(find):
    assert find("Speaker", model=f"{MODEL}\n\nclass Loud(Speaker):\n    pass\n") == []
