from pathlib import Path

import pytest

from surestep.base.errors import RunError
from surestep.base.paths import require_local_path


@pytest.mark.parametrize(
    "path",
    [
        *("s3://bucket/run", "S3://bucket/run", Path("s3://bucket/run"), "gs://bucket/run"),
        *("gcs://bucket/run", "az://box/run", "abfs://box@account/run", "hf://me/model"),
        *("https://here.org/run", "dbfs:/runs/a", "file:///tmp/run", "memory://run"),
    ],
)
def test_address_is_rejected_with_what_to_pass(path):
    with pytest.raises(RunError, match=r"is an address.*Pass a local folder, such as runs/mine"):
        require_local_path(path)


@pytest.mark.parametrize(
    "path", ["runs/a", "/tmp/run", "12:30/a", "s3/run", "lr:/x", "a@b", ".", "my s3://x", "C:/run"]
)
def test_local_paths_are_accepted(path):
    assert require_local_path(path) == Path(path)
