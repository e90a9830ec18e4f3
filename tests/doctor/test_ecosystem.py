"""The doctor reports no correct code in installed packages."""

import pytest

from tests.doctor import ecosystem
from tests.needs import require

NUMBER = 8  # files of each package
PACKAGES = ("accelerate", "deepspeed", "ignite", "lightning", "peft", "torch", "transformers")
FORGETS_ZERO_GRAD = """
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in torch.utils.data.DataLoader(torch.randn(64, 2), batch_size=8, shuffle=True):
    loss = model(batch).mean()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.slow("checks files of libraries of dev-all")
@pytest.mark.parametrize("package", PACKAGES)
def test_no_correct_file_of_a_package_is_reported(package):
    require(package)
    paths = ecosystem.sample_training_files(package, NUMBER)
    assert len(paths) >= 5
    assert ecosystem.find_unknown(paths) == []


def test_mistake_in_a_package_is_reported(tmp_path, monkeypatch):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text(FORGETS_ZERO_GRAD)
    monkeypatch.setattr(ecosystem, "SITE", tmp_path)
    paths = ecosystem.sample_training_files("package", NUMBER)
    lines = ecosystem.find_unknown(paths, tmp_path)
    assert [line[: line.index(" `")] for line in lines] == ["package/train.py:8 SS101"]


def test_page_lists_the_known_findings():
    text = ecosystem.PAGE.read_text(encoding="utf-8")
    assert text == ecosystem.render_page(text)
