"""What `surestep train --prove` proved of the program of a run, as one line of its page."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

_STATUSES = ("holds", "ignored", "not tested")
_SHOWN = {"holds": "hold", "ignored": "fail and are ignored", "not tested": "not tested"}


def describe_proof(
    proof: Mapping[str, Any], config: Mapping[str, Any], environment: Mapping[str, Any]
) -> str:
    """Return which laws were proved, on what; and why that is stale, if it is.

    Args:
        proof: the content of proof.json; anyone may have changed that file. {} if there is none.
        config: of the run as it is now.
        environment: of its last process.
    """
    rows = proof.get("rows")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        return ""
    names = defaultdict[str, list[str]](list)
    for row in rows:
        names[str(row.get("status"))].append(str(row.get("name")))
    parts = [
        f"{', '.join(names[status])}: {_SHOWN[status]}" for status in _STATUSES if names[status]
    ]
    versions, git = proof.get("versions"), proof.get("git")
    on = []
    if isinstance(git, dict) and git.get("commit"):
        changed = " with changed files" if git.get("dirty") else ""
        on.append(f"commit {str(git['commit'])[:12]}{changed}")
    if isinstance(versions, dict):
        on += [f"{name} {version}" for name, version in versions.items()]
    text = "; ".join([*parts, ", ".join(on)])
    stale = _find_change(proof, config, environment)
    return f"{text}; stale since {stale} changed" if stale else text


def _find_change(
    proof: Mapping[str, Any], config: Mapping[str, Any], environment: Mapping[str, Any]
) -> str:
    """Return what of the run is not what was proved; "" if all is."""
    recipe = config.get("recipe")
    if isinstance(recipe, dict) and recipe.get("sha256") != proof.get("recipe"):
        return "the code of the recipe"
    if environment.get("git") != proof.get("git"):
        return "the commit"
    packages, versions = environment.get("packages"), proof.get("versions")
    if isinstance(packages, dict) and isinstance(versions, dict):
        for name in ("surestep", "torch"):
            one, other = packages.get(name), versions.get(name)
            if one and other and _drop_build(one) != _drop_build(other):
                return f"the version of {name}"
    return ""


def _drop_build(version: Any) -> str:
    """Return a version without its local part, such as the +cpu of torch."""
    return str(version).partition("+")[0]
