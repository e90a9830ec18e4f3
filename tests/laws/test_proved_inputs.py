"""Programs that cannot be proved in full: a clear sentence for each, and no file is lost."""

import os
import time

import pytest
import torch
from torch import nn

import surestep
from surestep.base.errors import ConfigError, TaskError
from surestep.laws.checks import ranks
from surestep.laws.files import protect_files
from surestep.laws.processes import Call, call_in_processes
from surestep.laws.program import Program, describe_program
from surestep.laws.runner import RunFailedError
from tests import tiny

CALLS = []


def make_once():
    if CALLS:
        raise ValueError("the name is taken")
    CALLS.append(1)
    return tiny.task()


def build_twice():
    program = Program(make_once, tiny.config())
    program.build()
    program.build()


def call(folder, function, *arguments):
    began = time.monotonic()
    (outcome,) = call_in_processes(
        [Call(function, folder / "process", arguments)], at_once=1, end=began + 120
    )
    return outcome


def describe(folder, make_task, **options):
    return call(folder, describe_program, Program(make_task, tiny.config(**options)))


def test_task_that_can_be_made_once_is_named(tmp_path):
    outcome = call(tmp_path, build_twice)
    assert outcome.kind == "TaskError"
    assert "the second call in a process raised ValueError: the name is taken" in outcome.error


def test_function_that_returns_no_task_is_named(tmp_path):
    assert "Is a return missing?" in describe(tmp_path, lambda: None).error


def test_data_of_one_batch_are_too_few(tmp_path):
    outcome = describe(tmp_path, lambda: tiny.task(train=tiny.data(8)))
    assert "at least two batches of an epoch, and an epoch has 1: batch_size is 8" in outcome.error


def test_model_that_exists_already_is_taken(tmp_path):
    model = tiny.model()
    facts = describe(tmp_path, lambda: tiny.task(model=model)).value
    assert (facts.steps_per_epoch, facts.has_validation) == (3, False)


def test_stream_without_a_state_has_no_samples_to_share(tmp_path):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return zip(*tiny.data(40), strict=True)

    facts = describe(tmp_path, lambda: tiny.task(train=Stream()), max_steps=8).value
    assert facts.is_stream
    assert not facts.loads_in_workers


def test_model_that_needs_a_gpu_is_reported(tmp_path):
    def make_task():
        return tiny.task(model=nn.Linear(4, 3).to("cuda"))

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(ConfigError, match="The program cannot be planned"):
        surestep.prove_laws(make_task, tiny.config(), minutes=1.0)


def test_ranks_are_not_tested_if_a_program_of_a_gpu_fails_on_the_cpu(monkeypatch):
    class Facts:
        not_splitting, is_stream, has_no_data, has_loader = (), False, False, False
        batch_size, device = 8, "cuda:0"

    class Runner:
        facts = Facts

    def fail(*args):
        raise RunFailedError("The run failed.")

    monkeypatch.setattr(ranks, "_train_both", fail)
    assert ranks.check(Runner).status == "not tested"
    Facts.device = "cpu"
    with pytest.raises(RunFailedError):
        ranks.check(Runner)


def test_first_batch_that_takes_too_long_is_reported():
    def make_task():
        time.sleep(60)

    with pytest.raises(ConfigError, match="Set more minutes"):
        surestep.prove_laws(make_task, tiny.config(), minutes=0.02)


def overwrite(path, began, action):
    protect_files(began)
    if action == "overwrite":
        path.write_text("new")
    elif action == "delete":
        os.remove(path)
    else:
        path.with_name("other").write_text("other")
        os.replace(path.with_name("other"), path)


@pytest.mark.parametrize("action", ["overwrite", "delete", "replace"])
def test_file_that_was_there_before_is_not_lost(tmp_path, monkeypatch, action):
    monkeypatch.setattr("surestep.laws.files.tempfile.gettempdir", lambda: "/nowhere")
    path = tmp_path / "mine.txt"
    path.write_text("old")
    outcome = call(tmp_path, overwrite, path, time.time() + 60, action)
    assert f"would {action} {path}, which was there before" in outcome.error
    assert path.read_text() == "old"
    assert not call(tmp_path, overwrite, path, time.time() - 60, action).error  # its own file


def test_time_and_task_errors_are_those_of_the_user():
    with pytest.raises(TaskError, match="Pass a function that makes the task"):
        surestep.prove_laws(tiny.task(), tiny.config())
