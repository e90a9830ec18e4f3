import json

import pytest

from surestep.base.text import format_bytes
from surestep.engine.profile.step_memory import KINDS
from surestep.recipes.load import load
from surestep.trainer.planning import plan_task
from tests import tiny
from tests.cli.conftest import HEAD, RECIPE, STREAM


def test_plan_shows_every_option_with_its_reason(surestep, recipe):
    found = surestep("plan", recipe(), "--batch-size", "6", "--all")
    assert (found.code, found.err) == (0, "")
    for row in (
        " optim.lr 0.01 set in recipe mine ",
        " batch_size 6 set on the command line ",
        " steps_per_epoch 4 24 samples in batches of 6 ",
        " optim.eps 1e-08 torch's default ",
    ):
        assert row in found.out


def test_number_of_steps_of_a_stream_is_shown_as_not_known(surestep, recipe):
    found = surestep("plan", recipe(STREAM))
    assert " steps_per_epoch not known the training data is a stream " in found.out
    rows = json.loads(surestep("plan", recipe(STREAM), "--json").out)["decisions"]
    assert [each["value"] for each in rows if each["option"] == "steps_per_epoch"] == [None]


def split(shown, decisions):
    """Split the decisions into those that the table of a plan shows and those that it omits."""
    inside, left = [], []
    for each in decisions:
        value = tuple(each["value"]) if isinstance(each["value"], list) else each["value"]
        told = f" {each['option']} {value} {each['reason'][:40]}" in shown
        (inside if told else left).append(each)
    return inside, left


def test_plan_shows_only_the_relevant_decisions(surestep, recipe):
    shown, found = surestep("plan", recipe()), json.loads(surestep("plan", recipe(), "--json").out)
    inside, left = split(shown.out, found["decisions"])
    decided = {each["option"]: each["value"] for each in inside}
    assert {"optim.lr", "schedule.warmup", "device", "max_grad_norm", "loss"} <= decided.keys()
    assert not {None, False, "off", "none"} & {str(value) for value in decided.values()}
    hidden = {each["option"] for each in left}
    assert {"compile", "early_stop.patience"} <= hidden  # off
    assert {"optim.betas", "cudnn_benchmark"} <= hidden  # torch's defaults
    assert {"schedule.T_0", "average.every", "parallel.timeout_s"} <= hidden  # not chosen
    assert f"\n{len(left)} options are off, have torch's default or do not apply" in shown.out
    assert len(inside) < 0.4 * len(found["decisions"])


def test_plan_always_shows_the_learning_rate_and_the_weight_decay(surestep, recipe):
    shown = surestep("plan", recipe(RECIPE.replace("optim=surestep.Optim(lr=0.01),", ""))).out
    assert " optim.lr 0.001 torch's default " in shown
    assert " optim.weight_decay 0.01 torch's default " in shown


def test_printed_plan_has_the_rows_of_the_command(surestep, recipe):
    shown = surestep("plan", recipe()).out
    read = load(recipe())
    *rows, rest = str(plan_task(read.build({}, read.config), read.config).plan).splitlines()
    names = [row.split()[0] for row in rows]
    assert {"optim.lr", "batch_size", "total_steps"} <= set(names)
    places = [shown.index(f"\n {name} ") for name in names]
    assert places == sorted(places)
    assert f"\n{rest.partition(':')[0]}: --all shows them." in shown
    assert rest.endswith(": they are in plan.decisions.")
    (rate,) = (row for row in rows if row.startswith("optim.lr "))
    assert rate.split()[:3] == ["optim.lr", "0.01", "set"]


def test_run_folder_is_rejected_with_where_its_plan_is(surestep, recipe):
    surestep("train", recipe(), "--run", "r")
    answer = surestep("plan", "r")
    assert (answer.code, answer.out) == (2, "")
    assert "r is a run folder, not a recipe: r/plan.json has its options" in answer.err


def test_plan_with_all_shows_every_decision(surestep, recipe):
    shown = surestep("plan", recipe(), "--all").out
    inside, left = split(shown, json.loads(surestep("plan", recipe(), "--json").out)["decisions"])
    assert left == []
    assert len(inside) > 100
    assert "--all shows them" not in shown


def test_option_set_by_the_user_is_shown_even_if_it_has_no_effect(surestep, recipe):
    found = surestep("plan", recipe(), "--average.kind", "none", "--compile-blocks", "False")
    assert " compile_blocks False set on the command line " in found.out


def test_plan_shows_the_options_of_the_chosen_schedule(surestep, recipe):
    words = ("--schedule.name", "step", "--schedule.step-size", "2 steps")
    found = surestep("plan", recipe(), *words).out
    assert " schedule.step_size 2 steps set on the command line " in found
    assert "schedule.T_0" not in found
    assert " schedule.gamma 0.1 torch's default " in surestep("plan", recipe(), *words, "--all").out


def test_plan_shows_the_source_of_the_task_parameters(surestep, recipe, folder):
    (folder / "run.toml").write_text('[task]\nact = "relu"')
    words = ("--config", "run.toml", "--task.hidden", "12")
    rows = [line.split() for line in surestep("plan", recipe(), *words).out.splitlines()]
    shown = {row[0]: " ".join(row[1:]) for row in rows if row}
    assert shown["task.hidden"] == "12 set on the command line"
    assert shown["task.act"] == "relu set in run.toml:2"
    assert shown["task.bias"] == "True the recipe's default"


def test_planned_learning_rates_are_those_of_plain_torch(surestep, recipe, folder):
    import torch

    words = ("--schedule.name", "cosine", "--schedule.min-lr-ratio", "0.1")
    found = json.loads(surestep("plan", recipe(), "--json", *words).out)["rates"]
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.01)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.5, total_iters=2)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4, eta_min=0.001)
    both = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cosine], milestones=[2])
    rates = []
    for _ in range(6):
        rates.append(both.get_last_lr()[0])
        optimizer.step()
        both.step()
    assert found == pytest.approx({"first": rates[0], "peak": max(rates), "last": rates[-1]})
    shown = surestep("plan", recipe(), *words).out
    assert f"first peak last \n \n {rates[0]:.4g} 0.01 {rates[-1]:.4g} " in shown


def test_plan_shows_the_initial_weights_to_load(surestep, recipe, folder):
    import torch
    from torch import nn

    made = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))  # the recipe's has 3 classes
    torch.save(made.state_dict(), "w.pt")
    said = 'surestep.Task(init=surestep.InitWeights("w.pt", skip=["2"]), '
    text = RECIPE.replace("surestep.Task(", said)
    assert text != RECIPE
    found = surestep("plan", recipe(text))
    assert found.code == 0, found.err
    assert " loaded 2 0.weight, 0.bias " in found.out
    assert " missing, left as they are 2 2.weight, 2.bias " in found.out
    told = json.loads(surestep("plan", recipe(text), "--json").out)["init"]
    assert (told["loaded"], list(told["files"])) == (["0.weight", "0.bias"], ["w.pt"])
    wrong = surestep("plan", recipe(text.replace('["2"]', "[]")))
    assert wrong.code != 0
    assert "2.weight is (2, 8) there but (3, 8) here" in wrong.err


def test_parameters_are_counted_by_module(surestep, recipe):
    found = surestep("plan", recipe(), "--task.hidden", "1000").out
    assert " 0 Linear 5,000 5,000 " in found
    assert " 1 Tanh 0 0 " in found
    assert " 2 Linear 3,003 3,003 " in found
    assert " in all 8,003 8,003 " in found


def test_plan_shows_memory_with_measured_activations(surestep, recipe):
    found = surestep("plan", recipe(), "--task.hidden", "1000")
    assert " 1 Tanh 0 0 31.2 KiB " in found.out  # for 8 samples, 1,000 outputs
    assert "Memory at the peak of a step with micro-batches of 8" in found.out
    assert " weights 31.3 KiB " in found.out
    words = ("--json", "--task.hidden", "1000")
    takes = json.loads(surestep("plan", recipe(), *words).out)["footprint"]
    kinds = [takes[kind] for kind in KINDS]
    assert sum(kinds) == takes["peak"]
    assert sum(takes["by_module"].values()) == takes["kept"]
    assert takes["optimizer"] == 2 * takes["weights"] + 4 * 4
    assert (takes["not_known"], takes["kept_without_checkpointing"]) == ("", None)


def test_plan_shows_activations_with_and_without_checkpointing(surestep, recipe):
    words = ("--task.hidden", "1000", "--activation-checkpointing", "1")
    assert "Without activation checkpointing the activations would take 31.4 KiB." in (
        surestep("plan", recipe(), *words).out
    )


OWN = f"""{HEAD}
config = surestep.Config(epochs=1)

def task():
    return surestep.Task(
        model=nn.Linear(4, 3), loss=nn.CrossEntropyLoss(), train=(x, y),
        optimizer=lambda groups: torch.optim.RMSprop(groups, lr=0.1))
"""


def test_memory_of_a_custom_optimizer_is_traced(surestep, recipe):
    found = surestep("plan", recipe(OWN))
    assert found.code == 0
    assert "Learning rate" not in found.out
    found = json.loads(surestep("plan", "mine.py", "--json").out)
    assert (found["rates"], found["footprint"]["optimizer"]) == (None, 60 + 2 * 4)


def test_plan_leaves_no_files(surestep, recipe, folder):
    surestep("plan", recipe())
    assert {path.name for path in folder.iterdir()} <= {"mine.py", "__pycache__"}


def test_trained_config_is_the_planned_one(surestep, recipe, folder):
    planned = json.loads(surestep("plan", recipe(RECIPE), "--json").out)["decisions"]
    surestep("train", "mine.py", "--run", "r")
    trained = json.loads((folder / "r" / "plan.json").read_text())
    assert [one for one in trained if one["option"] != "not_checked"] == planned


def test_plan_succeeds_if_the_forward_fails(surestep, recipe):
    text = OWN.replace("nn.Linear(4, 3)", "Never(4, 3)").replace(
        "def task", "class Never(nn.Linear):\n    def forward(self, x): 1 / 0\n\ndef task"
    )
    assert tiny.FEATURES == 4
    found = surestep("plan", recipe(text))
    assert found.code == 0
    assert "The memory of a step is not known: the first batch fails: ZeroDivisionErr" in found.out
    assert " optimizer not known " in found.out
    assert surestep("plan", "mine.py", "--memory", "1GB").code == 0


def test_plan_for_more_ranks_shows_the_memory_of_each_rank(surestep, recipe):
    words = ["--batch-size", "8", "--ranks", "4", "--local-ranks", "2"]
    found = surestep("plan", recipe(), *words)
    assert (found.code, found.err) == (0, "")
    assert "Memory on each of 4 ranks, 2 on a machine" in found.out
    shown = json.loads(surestep("plan", recipe(), *words, "--json").out)
    decided = {each["option"]: each["value"] for each in shown["decisions"]}
    assert (decided["parallel.ranks"], decided["parallel.rank"]) == (4, 0)
    assert shown["footprint"]["activations"] > 0  # of a rank that has samples
    ddp, full = shown["ranks"][0], shown["ranks"][1]
    assert ddp["weights"] == shown["footprint"]["weights"] + shown["footprint"]["buffers"]
    assert full["strategy"] == "fsdp full"
    assert full["weights"] < ddp["weights"]


def test_plan_for_ranks_builds_a_shipped_recipe_on_the_meta_device(surestep):
    found = surestep(
        "plan",
        "chars",
        "--ranks",
        "64",
        "--parallel.meta-init",
        "True",
        "--parallel.shard",
        "full",
        "--task.width",
        "8",
        "--task.layers",
        "1",
    )
    assert found.code == 0
    assert " blocks Sequential " in found.out
    assert "not known" not in found.out


def test_plan_finds_the_largest_micro_batch_that_fits_into_a_memory(surestep, recipe):
    words = ("--task.hidden", "1000", "--json")
    of_five = json.loads(surestep("plan", recipe(), *words, "--micro-batch-size", "5").out)
    limit = of_five["footprint"]["peak"]
    found = json.loads(surestep("plan", "mine.py", *words, "--memory", f"{limit}B").out)["fits"]
    assert found == [{"strategy": "single", "micro_batch_size": 5, "peak": limit}]
    shown = surestep("plan", "mine.py", "--task.hidden", "1000", "--memory", "1GB").out
    assert "Largest micro-batch that fits into 953.7 MiB, of a batch of 8" in shown
    assert " single (chosen) 8 " in shown


def test_largest_share_of_a_batch_decides_what_fits(surestep, recipe):
    words = ("--batch-size", "10", "--ranks", "4", "--memory", "1GB")
    found = json.loads(surestep("plan", recipe(), *words, "--json").out)
    assert {fit["micro_batch_size"] for fit in found["fits"]} == {3}  # of 3, 2, 3 and 2 samples
    assert found["footprint"]["micro_batch_size"] == 3
    assert "of the 3 samples of a rank" in surestep("plan", "mine.py", *words).out


def test_plan_for_a_device_that_is_not_here(surestep, recipe):
    words = ("--device", "cuda", "--memory", "24GB", "--json")
    found = surestep("plan", recipe(), *words, "--ranks", "4")
    assert found.code == 0, found.err
    report = json.loads(found.out)
    assert {each["option"]: each["value"] for each in report["decisions"]}["device"] == "cuda:0"
    takes = report["footprint"]
    assert takes["weights"] % 512 == 0  # the caching allocator's blocks
    assert takes["workspace"] == 2 * 8_519_680  # cuBLAS
    assert any("no CUDA device here" in note for note in takes["notes"])
    assert [fit["strategy"] for fit in report["fits"]][:2] == ["ddp", "fsdp full"]
    assert all(fit["micro_batch_size"] == 2 for fit in report["fits"])


def test_plan_lists_what_helps_if_not_even_one_sample_fits(surestep, recipe):
    found = surestep("plan", recipe(), "--memory", "100B")
    as_json = surestep("plan", "mine.py", "--memory", "100B", "--json")
    assert (found.code, as_json.code) == (1, 1)
    report = json.loads(as_json.out)
    peak, advice = report["fits"][0]["peak"], report["advice"]
    now = format_bytes(peak)
    assert advice["current"] == peak
    assert f"Not even 1 sample fits: it takes {now}." in found.out
    assert f"What would help, in this order, with the predicted peak (now {now}):" in found.out
    assert [r["setting"] for r in advice["remedies"]][-1].endswith("over 64 ranks (--ranks 64)")
    for remedy in advice["remedies"]:
        assert remedy["setting"] in found.out
        assert f": {format_bytes(remedy['peak'])}, which is not enough\n" in found.out
        assert remedy["peak"] < peak
        assert remedy["is_enough"] is False


@pytest.mark.parametrize(
    ("memory", "said"),
    [
        ("24", "--memory 24 has no unit. Write --memory 24GB."),
        ("0GB", "--memory 0GB leaves no memory. Write an amount above 0, such as 24GB."),
        ("0", "--memory 0 leaves no memory."),
        ("-3GB", "--memory -3GB leaves no memory."),
        ("lots", "--memory 'lots' is not an amount of memory. Write a number with a unit, such as"),
        ("GB", "--memory 'GB' is not an amount of memory."),
    ],
)
def test_invalid_memory_is_rejected(surestep, recipe, memory, said):
    found = surestep("plan", recipe(), f"--memory={memory}")
    assert (found.code, found.out) == (2, "")
    assert said in found.err


def test_plan_says_for_which_device_it_is(surestep, recipe):
    first = surestep("plan", recipe(), "--memory", "24GB").out.splitlines()[0]
    assert first == (
        "Planned for a CPU (device='cpu') with 22.4 GiB. For a GPU, add --device cuda."
    )
    found = surestep("plan", "mine.py", "--memory", "24GB", "--device", "cuda:9")
    assert found.code == 0, found.err
    assert found.out.splitlines()[0] == (
        "Planned for a GPU (device='cuda:9') with 22.4 GiB. For a CPU, add --device cpu."
    )


def test_device_that_is_not_here_needs_its_memory(surestep, recipe):
    found = surestep("plan", recipe(), "--device", "cuda")
    assert (found.code, found.out) == (2, "")
    assert "device='cuda' is not available: this machine has no CUDA device" in found.err
    assert "add its memory, such as --memory 24GB." in found.err


def test_what_fits_is_answered_if_splitting_would_change_the_update(surestep, recipe):
    line = RECIPE[RECIPE.index("model=lambda:") :].splitlines()[0]
    model = "nn.Sequential(nn.Linear(4, 1000), nn.BatchNorm1d(1000), nn.Linear(1000, 3))"
    text = RECIPE.replace(line, f"model=lambda: {model},")
    of_five = surestep("plan", recipe(text), "--micro-batch-size", "5", "--json")
    limit = json.loads(of_five.out)["footprint"]["peak"]
    words = ("--micro-batch-size", "fit", "--memory", f"{limit}B")
    found = surestep("plan", "mine.py", *words)
    assert found.code == 0, found.err
    assert "splitting changes the update here (batch statistics are the micro-batch's)" in found.out
    assert " single (chosen) 5 " in found.out
    line = (
        "A micro-batch of fewer than 8 samples changes the update: batch statistics are the "
        "micro-batch's."
    )
    assert line in found.out
    assert line in surestep("plan", "mine.py", "--memory", f"{limit}B").out
    assert line not in surestep("plan", "mine.py", "--memory", "1GB").out


def test_unknown_device_is_rejected(surestep, recipe):
    found = surestep("plan", recipe(), "--memory", "24GB", "--device", "tpu")
    assert found.code == 2
    assert "device='tpu' is not available" in found.err


NO_DATA = f"""{HEAD}
config = surestep.Config(max_steps=4)

def step(manual_step):
    for micro_batch in manual_step.micro_batches():
        manual_step.backward(manual_step.model(torch.ones(2, 4)).sum(), micro_batch)
    manual_step.step("0")

def task():
    return surestep.Task(
        model=lambda: nn.Sequential(nn.Linear(4, 3)), step=step, train=None,
        optimizers={{"0": surestep.Optim(lr=0.1)}})
"""


def test_a_task_without_data_has_one_size(surestep, recipe):
    found = surestep("plan", recipe(NO_DATA), "--memory", "24GB")
    assert found.code == 0, found.err
    assert "There is no other size of a micro-batch: the task has no training data" in found.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--ranks", "6", "--local-ranks", "4"],
            "4 ranks per machine. Use --local-ranks 3, or --ranks 8",
        ),
        (["--ranks", "12"], "ranks per machine, the default of --local-ranks. Use --local-ranks 6"),
        (["--ranks", "0"], "--ranks 0"),
        (["--local-ranks", "4"], "--ranks 32"),
    ],
)
def test_invalid_number_of_ranks_is_rejected(surestep, recipe, words, said):
    found = surestep("plan", recipe(), *words)
    assert found.code == 2
    assert said in found.err
