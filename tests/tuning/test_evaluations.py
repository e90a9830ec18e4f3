from surestep.tuning.evaluations import read_measurements


class Events:
    """A run that has only events."""

    def __init__(self, *events):
        self._events = events

    def events(self):
        return iter(self._events)


def evaluation(step, loss, **more):
    return {"event": "evaluation", "step": step, "metrics": {"val/loss": loss}, **more}


def steps(first, seconds, peak=5):
    return {"event": "steps", "first": first, "seconds": seconds, "peak_memory": peak}


def test_what_a_resumed_run_repeats_counts_once():
    found = read_measurements(
        Events(
            steps(1, 2.0),
            evaluation(3, 0.9),
            steps(4, 1.0, peak=9),
            evaluation(6, 0.1),
            {"event": "resume", "step": 3},
            steps(4, 1.5),
            evaluation(6, 0.5),
        )
    )
    assert found.evaluations == {3: {"val/loss": 0.9}, 6: {"val/loss": 0.5}}
    assert found.seconds == 3.5
    assert found.peak_memory == 9


def test_step_that_a_run_resumes_after_keeps_its_time():
    """With a log point of that step alone."""
    found = read_measurements(
        Events(steps(1, 2.0), steps(3, 1.0), steps(4, 4.0), {"event": "resume", "step": 3})
    )
    assert found.seconds == 3.0


def test_evaluation_that_a_rollback_undoes_is_left_out():
    found = read_measurements(
        Events(evaluation(3, 0.9), evaluation(6, 0.1), {"event": "rollback", "step": 3})
    )
    assert list(found.evaluations) == [3]


def test_evaluation_of_a_checkpoint_is_not_one_of_the_training():
    assert not read_measurements(Events(evaluation(3, 0.9, which="best"))).evaluations


def test_best_evaluation_has_a_number():
    found = read_measurements(Events(evaluation(3, "nan"), evaluation(6, 2.0), evaluation(9, 1.0)))
    assert found.best("val/loss", "min") == 9
    assert found.best("val/loss", "max") == 6
    assert found.best("val/other", "max") is None
