import pytest

from tests.needs import needs
from tests.tracking.mlflow_server import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    needs("mlflow")
    server = Server(tmp_path_factory.mktemp("mlflow"))
    server.start()
    yield server
    server.kill()
