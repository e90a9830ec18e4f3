"""MLflow's local store has all its tables, whenever the process that creates it ends."""

import os
import re
import subprocess
import sys

import pytest

from surestep.base.errors import RunError
from surestep.tracking.mlflow_store import create_store, explain_half_created
from tests.needs import needs

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow's own
# Ends the process in the middle of a migration, as the end of a run may do.
KILLED = """
import os, sys
from sqlalchemy import event
from sqlalchemy.engine import Engine

@event.listens_for(Engine, "before_cursor_execute")
def end(connection, cursor, statement, *rest):
    if "INSERT INTO _alembic_tmp_" in statement:
        connection.connection.commit()
        os._exit(9)
"""
BY_SURESTEP = """
from surestep.tracking.mlflow_store import create_store
create_store(sys.argv[1])
"""
BY_MLFLOW = """
from mlflow import MlflowClient
MlflowClient(sys.argv[1]).search_experiments()
"""


@pytest.fixture(autouse=True, scope="module")
def library():
    needs("mlflow")  # here, because each process that collects this file would import it


@pytest.fixture
def file(tmp_path):
    return tmp_path / "mlflow.db"


@pytest.fixture
def uri(file):
    return f"sqlite:///{file}"


def end_during_migration(uri, code):
    command = [sys.executable, "-c", KILLED + code, uri]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 9


def find_experiments(uri):
    from mlflow import MlflowClient

    return [experiment.name for experiment in MlflowClient(uri).search_experiments()]


def test_store_is_created_by_the_next_process_after_one_that_was_killed(file, uri):
    end_during_migration(uri, BY_SURESTEP)
    assert not file.exists()
    create_store(uri)
    assert find_experiments(uri) == ["Default"]
    created = file.stat()
    create_store(uri)
    assert file.stat() == created


def test_store_that_another_process_creates_first_is_left_as_it_is(file, uri, monkeypatch):
    link = os.link

    def link_late(new, path):
        path.write_text("of another process")
        link(new, path)

    monkeypatch.setattr(os, "link", link_late)
    create_store(uri)
    assert list(file.parent.iterdir()) == [file]
    assert file.read_text() == "of another process"


def test_store_that_mlflow_left_incomplete_is_explained(file, uri):
    end_during_migration(uri, BY_MLFLOW)
    create_store(uri)  # which leaves a file that exists
    expected = rf"^{re.escape(str(file))} is incomplete: .* Rename it, or delete it"
    with pytest.raises(RunError, match=expected), explain_half_created(uri):
        find_experiments(uri)


def test_other_errors_are_not_changed(uri):
    for address, text in [("http://host", "(OperationalError) x already exists"), (uri, "full")]:
        with (
            pytest.raises(ValueError, match=f"^{re.escape(text)}$"),
            explain_half_created(address),
        ):
            raise ValueError(text)


@pytest.mark.parametrize(
    "uri", ["http://host", "sqlite://", "sqlite:///:memory:", "sqlite:///no/folder/m.db", "mlruns"]
)
def test_store_that_is_not_a_new_file_of_sqlite_is_left_to_mlflow(tmp_path, monkeypatch, uri):
    monkeypatch.chdir(tmp_path)
    create_store(uri)
    assert list(tmp_path.iterdir()) == []
