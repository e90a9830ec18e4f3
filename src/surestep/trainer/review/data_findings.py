"""The findings of the data of a run, in its folder: a resumed run repeats them.

The data is checked before the first step. `data_findings.json` has what was found, and of what: a
run that resumes with the same data, code and options reads it, and checks again otherwise.
"""

from collections.abc import Collection, Iterable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from surestep.base.errors import RunError
from surestep.doctor.finding import Finding
from surestep.engine.data.dataset import count_samples
from surestep.engine.data.make_source import probe_indices
from surestep.engine.data.origins import list_entries
from surestep.engine.plan.not_checked import not_checked
from surestep.engine.plan.plan import Plan
from surestep.engine.task.task import Task
from surestep.record.io import dumps, read_json
from surestep.record.schemas import DATA_FINDINGS
from surestep.trainer.planning import data_splits
from surestep.trainer.run_identity import describe_split

NAME = "data_findings.json"
_PARTS = ("task", "data", "loss", "model", "modules")  # of the identity, which findings depend on
_OPTIONS = (
    *("batch_size", "micro_batch_size", "parallel.ranks"),
    *("data.shuffle", "data.shuffle_buffer", "data.sampler", "data.drop_last"),
)
_FIELDS = (*("rule", "name", "severity", "file", "line", "column", "message", "evidence", "fix"),)
_NAMED = 20  # samples of a finding that are compared
_ENTRIES = 1024  # of the groups and times of a set that are compared


def describe_setup(identity: Mapping[str, Any], task: Task, plan: Plan) -> dict[str, Any]:
    """Return what the findings of the data depend on, as the file has it.

    Args:
        identity: of the run.
        task: the task.
        plan: the options of the run.
    """
    splits = data_splits(task)
    known = {
        **{name: identity[name] for name in _PARTS},
        "recipe": identity["recipe"].get("sha256"),
        "options": {name: identity["decided"].get(name) for name in _OPTIONS},
        "counts": {name: count_samples(data, name) for name, data in splits.items()},
        "same": [name for name, data in splits.items() if data is task.train],
        "origins": [_describe_origins(getattr(task, option)) for option in ("groups", "times")],
    }
    return {
        "setup": _digest(dumps(known)),
        "code": identity["code"],
        "read": plan.doctor_check_data,
        "ignored": sorted(plan.doctor_ignore),
    }


def describe_sets(
    task: Task, plan: Plan, samples: Mapping[str, Collection[int]]
) -> dict[str, dict[str, Any]]:
    """Return a digest of samples of some sets, by name.

    Args:
        task: the task.
        plan: the options of the run.
        samples: indices of samples that are in the digest in any case, for each of the sets.
    """
    splits, found = data_splits(task), {}
    for name, also in samples.items():
        try:
            described = describe_split(splits[name], name, task=task, plan=plan, also=also)
        except Exception as error:  # of the user's data; the first batch reports it
            not_checked(f"{name} data", f"it cannot be read: {type(error).__name__}: {error}")
        else:
            found[name] = {"digest": _digest(dumps(described)), "samples": list(also)}
    return found


def named_samples(findings: Iterable[Finding]) -> dict[str, list[int]]:
    """Return the indices of samples that findings name, for each set: they may be corrected."""
    named: dict[str, set[int]] = {}
    for finding in findings:
        part, samples, pairs = map(finding.evidence.get, ("part", "samples", "pairs"))
        if part is not None and isinstance(samples, list):
            named.setdefault(part, set()).update(samples[:_NAMED])
        for row, of_train in pairs or ():
            named.setdefault(str(part), set()).add(row)
            named.setdefault("train", set()).add(of_train)
    return {name: sorted(rows) for name, rows in named.items()}


def read_findings(
    folder: Path, setup: Mapping[str, Any], task: Task, plan: Plan
) -> list[Finding] | None:
    """Return what an earlier process of a run found; None if the data must be checked again.

    Args:
        folder: of the run.
        setup: what `describe_setup` returns now.
        task: the task.
        plan: the options of the run.
    """
    try:
        known = read_json(folder / NAME, DATA_FINDINGS)
    except RunError:  # it was not checked, or the file is damaged
        return None
    code, samples = known["code"], {name: one["samples"] for name, one in known["sets"].items()}
    is_same = (
        known["setup"] == setup["setup"]
        # One process may have imported more modules than another one.
        and all(code.get(name, digest) == digest for name, digest in setup["code"].items())
        and known["read"] in (setup["read"], "all")
        and set(known["ignored"]) <= set(setup["ignored"])
        and known["sets"] == describe_sets(task, plan, samples)
    )
    if not is_same:
        return None
    findings = [Finding(**{name: found[name] for name in _FIELDS}) for found in known["findings"]]
    return [finding for finding in findings if finding.rule not in plan.doctor_ignore]


def to_file(
    setup: Mapping[str, Any], sets: Mapping[str, Any], findings: Iterable[Finding]
) -> dict[str, Any]:
    """Return the content of the file.

    Args:
        setup: what `describe_setup` returned.
        sets: what `describe_sets` returned.
        findings: of the data.
    """
    listed = [{name: getattr(finding, name) for name in _FIELDS} for finding in findings]
    return {**setup, "sets": sets, "findings": listed}


def _describe_origins(origins: Mapping[str, Any]) -> dict[str, str]:
    """Return a digest of some groups or times of each set."""
    return {
        name: _digest(repr(list_entries(entries, probe_indices(len(entries), _ENTRIES))))
        for name, entries in origins.items()
    }


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=16).hexdigest()
