"""Reject addresses of object stores: surestep reads and writes file systems only."""

import os
import re
from pathlib import Path

from surestep.base.errors import RunError

# The usual command to copy to and from each store, if there is one.
_COPIED_BY = {
    **dict.fromkeys(("s3", "s3a", "s3n"), "aws s3 sync runs/mine s3://..."),
    **dict.fromkeys(("gs", "gcs"), "gcloud storage rsync -r runs/mine gs://..."),
    **dict.fromkeys(("az", "abfs", "abfss", "wasb", "wasbs"), "azcopy sync runs/mine https://..."),
    "hf": "hf upload NAME runs/mine",
}
_STORES = (*_COPIED_BY, "adl", "dbfs", "file", "ftp", "hdfs", "http", "https", "oss", "sftp", "ssh")
_URL = re.compile(rf"([a-z][a-z0-9+.-]+)://|({'|'.join(_STORES)}):/", re.IGNORECASE)


def require_local_path(path: str | os.PathLike[str]) -> Path:
    """Return a local path.

    Raises:
        RunError: it is an address, such as s3://bucket/run.
    """
    text = os.fspath(path)
    match = _URL.match(text)
    if match is None:
        return Path(text)
    scheme, rest = (match[1] or match[2]).lower(), text[match.end() :].lstrip("/")
    if scheme == "file":
        raise RunError(f"{text!r} is an address. Pass the path alone: /{rest}.")
    mounted = f"/dbfs/{rest}" if scheme == "dbfs" else "the folder it is mounted at"
    copied = _COPIED_BY.get(scheme)
    by = f", for instance by `{copied}`" if copied else ""
    raise RunError(
        f"{text!r} is an address, and only folders of a file system are written and read: a "
        "checkpoint is published by a rename, and a lock keeps others out. Pass a local folder, "
        f"such as runs/mine, and copy it{by}; or pass {mounted}."
    )
