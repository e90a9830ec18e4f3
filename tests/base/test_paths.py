import re
from pathlib import Path

import pytest

from surestep.base.errors import RunError
from surestep.base.paths import require_local_path


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("s3://bucket/run", "aws s3 sync"),
        ("S3://bucket/run", "aws s3 sync"),
        (Path("s3://bucket/run"), "aws s3 sync"),
        ("gs://bucket/run", "gcloud storage rsync"),
        ("gcs://bucket/run", "gcloud storage rsync"),
        ("az://box/run", "azcopy sync"),
        ("abfs://box@account/run", "azcopy sync"),
        ("hf://me/model", "hf upload"),
        ("https://here.org/run", "Pass a local folder"),
        ("dbfs:/runs/a", re.escape("or pass /dbfs/runs/a.")),
        ("file:///tmp/run", re.escape("Pass the path alone: /tmp/run.")),
        ("memory://run", "the folder it is mounted at"),
    ],
)
def test_url_is_rejected_with_a_hint(path, hint):
    with pytest.raises(RunError, match=rf"is an address.*{hint}"):
        require_local_path(path)


@pytest.mark.parametrize(
    "path", ["runs/a", "/tmp/run", "12:30/a", "s3/run", "lr:/x", "a@b", ".", "my s3://x", "C:/run"]
)
def test_local_paths_are_accepted(path):
    assert require_local_path(path) == Path(path)
