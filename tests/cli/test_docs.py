"""`surestep docs` finds each page, in a clone and in an installed wheel."""

from pathlib import Path, PurePosixPath

import pytest

from surestep.cli import docs

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in (ROOT / "docs").glob("*.md") if path.stem != "README")


def test_pages_are_listed_with_their_titles(surestep):
    answer = surestep("docs")
    assert answer.code == 0
    assert [line.split()[0] for line in answer.out.splitlines()] == NAMES
    assert "evaluation" in answer.out
    assert "Evaluation and prediction" in answer.out
    assert "The loss curve of a run" in answer.out  # below a comment
    assert "<!--" not in answer.out


@pytest.mark.parametrize("topic", ["running", "running.md", "docs/running.md"])
def test_page_is_printed_as_it_is(surestep, capfd, topic):
    assert surestep("docs", topic).code == 0
    docs.run([topic])
    assert capfd.readouterr().out == (ROOT / "docs/running.md").read_text()


@pytest.mark.parametrize("topic", ["runningg", "../../etc/passwd", "README"])
def test_page_that_does_not_exist_is_rejected_with_those_that_do(surestep, topic):
    answer = surestep("docs", topic)
    assert (answer.code, answer.out) == (2, "")
    assert f"There is no page {topic!r}. " in answer.err


class Installed(PurePosixPath):
    """A file of an installed wheel, as its RECORD lists it."""

    def locate(self):
        return ROOT / "docs" / self.name


def test_pages_of_an_installed_wheel_are_found_by_its_record(monkeypatch, tmp_path):
    monkeypatch.setattr(docs.surestep, "__file__", str(tmp_path / "a/b/surestep/__init__.py"))
    listed = [Installed(f"../../../share/surestep/docs/{name}.md") for name in NAMES]
    listed += [Installed("surestep/cli/docs.py")]
    monkeypatch.setattr(docs.metadata, "files", lambda name: listed)
    assert list(docs.find_pages()) == NAMES
    monkeypatch.setattr(docs.metadata, "files", lambda name: None)
    with pytest.raises(docs.ConfigError, match="are not installed"):
        docs.find_pages()
