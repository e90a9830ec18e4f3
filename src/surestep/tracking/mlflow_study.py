"""The parent run of a search in MLflow: its trials are nested below it."""

from typing import Any

from surestep.tracking.tracker import StudyResult

STUDY, KIND = "surestep.study", "surestep.kind"
PARENT = "mlflow.parentRunId"


def find_parent(client: Any, experiment_id: str, study: str) -> str:
    """Return the id of the parent run of a study, which is created if there is none.

    Workers that create it at once then choose the oldest of what they find. `finish_parent` merges
    those that are left.
    """
    found = _parents(client, experiment_id, study)
    if not found:
        client.create_run(experiment_id, run_name=study, tags={STUDY: study, KIND: "study"})
        found = _parents(client, experiment_id, study)
    return str(found[0].info.run_id)


def finish_parent(client: Any, experiment_id: str, study: StudyResult) -> None:
    """Log the result of a study to its parent run.

    Parameters of MLflow cannot change, and the best trial of a longer search may be another. So the
    parameters of the best trial are tags, "best.NAME".
    """
    parent = find_parent(client, experiment_id, study.name)
    _merge(client, experiment_id, study.name, parent)
    tags = {f"best.{name}": str(value) for name, value in study.params.items()}
    for name in client.get_run(parent).data.tags:
        if name.startswith("best.") and name not in tags:  # only the best trial before had it
            client.delete_tag(parent, name)
    for name, value in tags.items():
        client.set_tag(parent, name, value)
    for name, number in study.metrics.items():
        client.log_metric(parent, name, number)
    best = {"params": dict(study.params), "metrics": dict(study.metrics)}
    client.log_dict(parent, best, "best.json")
    for file in study.files:
        client.log_artifact(parent, str(file))
    client.set_terminated(parent, "FINISHED")


def _merge(client: Any, experiment_id: str, study: str, parent: str) -> None:
    """Move the trials of other parent runs of the study to one, and delete the others."""
    for other in _parents(client, experiment_id, study):
        if other.info.run_id == parent:
            continue
        where = f"tags.`{PARENT}` = '{other.info.run_id}'"
        for trial in client.search_runs([experiment_id], where, max_results=50_000):
            client.set_tag(trial.info.run_id, PARENT, parent)
        client.delete_run(other.info.run_id)


def _parents(client: Any, experiment_id: str, study: str) -> list[Any]:
    """Return the parent runs of a study, oldest first."""
    where = f"tags.`{KIND}` = 'study'"
    runs = client.search_runs([experiment_id], where, max_results=50_000)
    found = [run for run in runs if run.data.tags.get(STUDY) == study]
    return sorted(found, key=lambda run: (run.info.start_time, run.info.run_id))
