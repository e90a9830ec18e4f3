"""MLflow's model registry: a version for each finished run, and the alias of the best one."""

import math
from typing import Any, Literal, NamedTuple

from surestep.tracking.mlflow_once import create_once

CHAMPION = "champion"
METRIC, MODE, VALUE = "surestep.metric", "surestep.mode", "surestep.value"
_MARK = "surestep.champion"  # "moving" while a version becomes the champion, then "moved"


class Score(NamedTuple):
    """The monitored metric of a version, and whether "min" or "max" is better."""

    metric: str
    mode: Literal["min", "max"]
    value: float

    def beats(self, other: "Score | None") -> bool:
        """Return whether it is better; False if the two cannot be compared."""
        if other is None or other[:2] != self[:2] or math.isnan(self.value):
            return False
        if math.isnan(other.value):
            return True
        return self.value < other.value if self.mode == "min" else self.value > other.value


def register_version(
    client: Any, name: str, *, source: str, run_id: str, model_id: str | None, score: Score | None
) -> str:
    """Add a version to a registered model, once for each model; return its number.

    The alias "champion" moves to it if its score is better than that of the champion, or if no
    version has the alias.

    Args:
        client: of MLflow.
        name: of the registered model, which is created if it is missing.
        source: where the model is.
        run_id: the run that trained it.
        model_id: of MLflow's logged model, if there is one.
        score: of the version; without one, it never becomes the champion.
    """
    _create_registered_model(client, name)

    def search() -> list[Any]:
        versions = client.search_model_versions(f"run_id='{run_id}'")
        known = [v for v in versions if v.name == name and v.source == source]
        return sorted(known, key=lambda version: int(version.version))

    def create() -> Any:
        tags = {} if score is None else _tags(score)
        return client.create_model_version(
            name, source, run_id, tags, model_id=model_id, await_creation_for=0
        )

    def delete(double: Any) -> None:
        client.delete_model_version(name, str(double.version))

    number = str(create_once(search, create, delete).version)
    if score is not None and not math.isnan(score.value):
        _move_champion(client, name, number, score)
    return number


def _create_registered_model(client: Any, name: str) -> None:
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def _tags(score: Score) -> dict[str, str]:
    return {METRIC: score.metric, MODE: score.mode, VALUE: repr(score.value)}


def read_score(version: Any) -> Score | None:
    """Return the score in the tags of a version; None if it has none."""
    tags = version.tags
    try:
        return Score(tags[METRIC], tags[MODE], float(tags[VALUE]))
    except (KeyError, ValueError):
        return None


def _move_champion(client: Any, name: str, number: str, score: Score) -> None:
    """Move the alias to a version that is better than the champion.

    MLflow cannot compare and set an alias at once. So two runs that finish together each mark their
    version first. After a run has set the alias, it searches for a better version that was marked
    since it read the champion, until there is none. Thus the last one to set the alias sets the
    best.
    """
    before = _marked(client, name, "moved")
    champion = _champion(client, name)
    is_other = champion is not None and str(champion.version) != number
    if is_other and not score.beats(read_score(champion)):
        return
    client.set_model_version_tag(name, number, _MARK, "moving")
    best, best_score, is_set = number, score, ""
    while is_set != best:
        client.set_registered_model_alias(name, CHAMPION, best)
        is_set = best
        for rival, rival_score in sorted(_marked(client, name, "moving", "moved") - before):
            if rival_score.beats(best_score):
                best, best_score = rival, rival_score
    client.set_model_version_tag(name, number, _MARK, "moved")


def _marked(client: Any, name: str, *marks: str) -> set[tuple[str, Score]]:
    """Return the versions with one of the marks, and their scores."""
    versions = client.search_model_versions(f"name='{name}'")
    found = [(str(v.version), read_score(v)) for v in versions if v.tags.get(_MARK) in marks]
    return {(number, score) for number, score in found if score is not None}


def _champion(client: Any, name: str) -> Any | None:
    from mlflow.exceptions import MlflowException

    try:
        return client.get_model_version_by_alias(name, CHAMPION)
    except MlflowException as error:
        if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            return None
        raise
