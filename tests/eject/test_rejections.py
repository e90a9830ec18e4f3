"""What eject cannot print is rejected in a sentence that says what to write instead."""

from dataclasses import replace
from pathlib import Path

import pytest

from surestep.base.errors import RecipeError
from surestep.config.config import iter_options
from surestep.eject.limits import PRINTED, VALUES, WITHOUT_COUNTERPART, is_classified
from surestep.eject.script import print_script
from surestep.engine.distributed.launcher_env import LaunchInfo
from surestep.engine.plan.system import read_system
from tests.laws.support.ejected import DATA, Case, loaded, read_call, small, write_task

OPTIONS = {
    "DeepSpeed": ({"parallel.strategy": "deepspeed"}, "Set parallel.strategy='ddp'"),
    "compile": ({"compile": "default"}, "does not print compile='default'. Set compile='off'"),
    "found rate": ({"optim.lr": "find"}, "Set the number that `surestep lr-find` prints"),
    "found size": ({"micro_batch_size": "fit"}, "Set a number, such as micro_batch_size=32"),
    "nonfinite": ({"on_nonfinite": "skip"}, "Set on_nonfinite='raise'"),
    "optimizer": ({"optim.name": "lbfgs", "batch_size": 56}, "Set optim.name='adamw'"),
    "momentum": (
        {"schedule.name": "one_cycle", "precision": "fp16"},
        "Set schedule.cycle_momentum=False",
    ),
    "average": (
        {"average.kind": "swa", "optim.groups": ("0.* lr=0.1x",)},
        "Set average.buffers='average'",
    ),
    "minutes": ({"checkpoint.every": "5 minutes"}, "Set checkpoint.every='1 epoch'"),
    "fraction": ({"validation.every": "0.3 epochs"}, "Set validation.every='1 steps'"),
    "rollback": ({"on_spike": "rollback"}, "Set on_spike='warn' or on_spike='off'"),
    "part of a module": ({"optim.groups": ("2.weight freeze",)}, "Write 'NAME freeze'"),
}
TASKS = {
    "manual step": ("", "step=lambda manual_step: None,", r"Task\(step=...\): a manual step"),
    "sampler of a name": ("", "sampler=SAMPLER,", r"Call surestep.samplers there: shuffled, seq"),
    "sampler of another kind": (
        "",
        "sampler=surestep.samplers.mixture({'a': 1.0}),",
        r"sampler=surestep.samplers.mixture\({'a': 1.0}\)\) is not printed",
    ),
    "lengths of a function": (
        "",
        "sampler=surestep.samplers.by_length(lambda sample: 3),",
        r"Give by_length\(\) the length of each sample",
    ),
    "loss of surestep": ("surestep.losses.focal()", "", "does not print the loss Focal"),
    "sum": ("nn.CrossEntropyLoss(reduction='sum')", "", "reduction='sum' or a hook"),
    "init of a file": ("", "init='x.pt',", r"init=torch.load\('x.pt', weights_only=True\)"),
    "init of a part": (
        "",
        "init=surestep.InitWeights(network()[2].state_dict(), into='2', skip=['0', '1']),",
        "leave out prefix=, into= and wildcards",
    ),
    "teacher of another loss": ("functional_mean", "teacher=network,", "distillation.. alone"),
    "smoothed labels of a teacher": (
        "surestep.losses.distillation(label_smoothing=0.1)",
        "teacher=network,",
        "eject prints distillation without label_smoothing",
    ),
    "distillation without a teacher": (
        "surestep.losses.distillation()",
        "",
        "does not print the loss Distillation",
    ),
    "items": ("functional_mean", "items=lambda batch: 1.0,", r"Task\(items=...\) is a function"),
}
SOURCES = {
    "exec": (
        DATA + "exec('def task(): pass')\ntask = vars()['task']\n",
        "the source shows no function",
    ),
    "loss of a plug-in": (
        DATA
        + "class Robust(nn.Module):\n    def forward(self, outputs, targets):\n"
        + "        return functional.cross_entropy(outputs, targets)\n\n"
        + write_task("Robust()"),
        "eject does not print the loss Robust. Use a loss of torch, one of",
    ),
    "two Tasks": (
        DATA
        + "def task():\n    if 1:\n        return surestep.Task()\n    return surestep.Task()\n",
        "task\\(\\) makes 2 Tasks",
    ),
    "stars": (DATA + "def task():\n    return surestep.Task(**{})\n", "passed with a star"),
    "statement": (
        DATA + write_task() + "\nprint(1)\n",
        r"`print\(1\)` runs when the recipe is imported",
    ),
    "trainer": (
        DATA
        + "def helper():\n    return surestep.Trainer\n"
        + write_task(model="network() if helper() else 0"),
        "helper uses surestep.Trainer",
    ),
    "name": (
        DATA + "def save(x):\n    return x\n" + write_task(model="save(network())"),
        "The recipe binds 'save' at its top",
    ),
    "loader": (
        DATA + write_task(data="(lambda *given: torch.utils.data.DataLoader(Augmented(*given)))"),
        "is a DataLoader, and eject prints a pair of tensors, a list of samples, or a Dataset",
    ),
    "stream": (
        DATA
        + "class Stream(torch.utils.data.IterableDataset):\n    def __init__(self, *given):\n"
        + "        pass\n    def __iter__(self):\n        yield torch.zeros(10), 0\n\n"
        + write_task(data="Stream"),
        "is a Stream, and eject prints a pair of tensors, a list of samples, or a Dataset",
    ),
    "epochs": (
        DATA
        + "class Changing(Augmented):\n    def set_epoch(self, epoch):\n        pass\n\n"
        + write_task(data="Changing"),
        "has set_epoch or __getitems__",
    ),
    "own generator": (
        DATA
        + "class Own(Augmented):\n    draws = torch.Generator()\n\n"
        + "    def __getitem__(self, index):\n"
        + "        return torch.randn(10, generator=self.draws), 0\n\n"
        + write_task(data="Own"),
        "eject prints the seeds of the global generators alone",
    ),
    "worker's seed": (
        DATA
        + "class Own(Augmented):\n    def __getitem__(self, index):\n"
        + "        return super().__getitem__(torch.utils.data.get_worker_info() and index)\n\n"
        + write_task(data="Own"),
        "Own uses torch.utils.data.get_worker_info",
    ),
    "named inputs": (
        DATA
        + "class Named(Augmented):\n    def __getitem__(self, index):\n"
        + "        return {'input': self.x[index], 'target': self.y[index]}\n\n"
        + write_task(data="Named"),
        "eject prints batches of two tensors, inputs and targets, and the data gives dict",
    ),
    "metrics": (
        DATA + write_task().replace('{"accuracy": accuracy}', "dict(accuracy=accuracy)"),
        "does not show which metrics there are",
    ),
    "probabilities": (
        DATA
        + "def shares():\n    return torch.zeros(56, 10), torch.full((56, 3), 1 / 3)\n"
        + write_task("nn.CrossEntropyLoss()")
        .replace("rows(56, 2)", "shares()")
        .replace("rows(21, 3)", "shares()")
        .replace('"accuracy": accuracy', ""),
        "for class indices of torch.int64",
    ),
    "terms": (
        DATA
        + "def terms(outputs, targets):\n    return {'a': functional_mean(outputs, targets)}\n"
        + write_task("terms"),
        "The loss terms returns a dict of terms",
    ),
    "table": (
        DATA
        + write_task().replace(
            '"accuracy": accuracy', '"accuracy": lambda outputs, targets: outputs'
        ),
        r"metrics\['accuracy'\] returns a Tensor",
    ),
    "loss by a name of surestep": (
        DATA
        + "from functools import partial\n"
        + write_task(
            model="network",
            loss="partial(lambda f, o, t: functional_mean(o, t), surestep.losses)",
            more="",
        ),
        "task uses surestep.losses",
    ),
    "callback": (
        DATA
        + "class Stops(surestep.Callback):\n    def on_step(self, state, result):\n        pass\n\n"
        + "callbacks = [Stops()]\n"
        + write_task(),
        "The callback Stops has on_step",
    ),
}


def reject(case: Case, folder: Path, text: str) -> None:
    with pytest.raises(RecipeError, match=text):
        print_script(read_call(case, folder), "a run")


RANKS = {
    "micro-batches": (small(micro_batch_size=4), "Set micro_batch_size=8"),
    "strategy": (small(parallel__strategy="fsdp"), "Set parallel.strategy='ddp'"),
    "frozen": (small(optim__groups=("0 freeze",)), "ranks without frozen modules"),
    "Dataset": (loaded(), "ranks for data in memory"),
    "last batch": (small(batch_size=11), "Set data.drop_last=True"),
    "sampler": (
        small(more="sampler=surestep.samplers.balanced(),"),
        r"Leave out Task\(sampler=...\), or --ranks",
    ),
    "statistics": (
        small(average__kind="swa", average__start="1 epoch"),
        "ranks without average.buffers='recompute'",
    ),
}


@pytest.mark.parametrize("name", RANKS)
def test_plan_of_two_ranks_that_a_script_cannot_have_is_rejected(tmp_path, name):
    case, text = RANKS[name]
    system = replace(
        read_system(), launched=LaunchInfo(size=2, local_size=2, launcher="x", is_simulated=True)
    )
    with pytest.raises(RecipeError, match=text):
        print_script(read_call(case, tmp_path), "a run", system=system)


@pytest.mark.parametrize("name", OPTIONS)
def test_option_that_a_script_cannot_have_is_rejected_by_name(tmp_path, name):
    options, text = OPTIONS[name]
    case = small()
    reject(Case(case.recipe, {**case.options, **options}), tmp_path, text)


@pytest.mark.parametrize("name", TASKS)
def test_part_of_a_task_that_a_script_cannot_have_is_rejected(tmp_path, name):
    loss, more, text = TASKS[name]
    reject(small(loss or "nn.CrossEntropyLoss()", more=more), tmp_path, text)


@pytest.mark.parametrize("name", SOURCES)
def test_recipe_that_is_not_readable_as_source_is_rejected(tmp_path, name):
    source, text = SOURCES[name]
    reject(Case(source, {}), tmp_path, text)


def test_model_of_another_module_is_rejected(tmp_path, monkeypatch):
    (tmp_path / "other_module_of_eject.py").write_text(
        "from torch import nn\nclass Other(nn.Linear):\n    pass\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(tmp_path)
    source = f"{DATA}from other_module_of_eject import Other\n" + write_task(
        model="Other(10, 3)", loss="functional_mean", more=""
    )
    reject(Case(source, {}), tmp_path, "a Other of other_module_of_eject, whose source")


@pytest.mark.slow("builds the tasks of built-in recipes")
def test_recipes_that_eject_cannot_print_are_rejected_with_the_reason():
    for name, text in {
        "gan": "a manual step",
        "hf": "the data gives dict",
    }.items():
        with pytest.raises(RecipeError, match=text):
            print_script(read_call(Case(name, {}), Path()), "a run")


def test_it_is_known_of_every_option_what_it_means_for_a_script():
    names = [name for name, _ in iter_options()]
    unknown = [name for name in names if not is_classified(name)]
    assert unknown == []
    groups = {name.partition(".")[0] for name in names} | set(names)
    assert set(PRINTED) | set(WITHOUT_COUNTERPART) | set(VALUES) <= groups
    assert not set(VALUES) & (set(PRINTED) | set(WITHOUT_COUNTERPART))
