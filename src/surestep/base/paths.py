"""Reject addresses of object stores: surestep reads and writes file systems only."""

import os
import re
from pathlib import Path

from surestep.base.errors import RunError

# `Path` turns the // of an address into /, so these are known without it too.
_STORES = "s3|s3a|s3n|gs|gcs|az|abfs|abfss|wasb|wasbs|hf|adl|dbfs|file|ftp|hdfs|https?|oss|sftp|ssh"
_ADDRESS = re.compile(rf"[a-z][a-z0-9+.-]+://|({_STORES}):/", re.IGNORECASE)


def require_local_path(path: str | os.PathLike[str]) -> Path:
    """Return a local path.

    Raises:
        RunError: it is an address, such as s3://bucket/run.
    """
    text = os.fspath(path)
    if _ADDRESS.match(text) is None:
        return Path(text)
    raise RunError(
        f"{text!r} is an address, but surestep needs a folder of a file system, which supports "
        "renames and locks. Pass a local folder, such as runs/mine, and copy it, for example with "
        "`aws s3 sync` or `gcloud storage rsync`; or pass the folder where the store is mounted."
    )
