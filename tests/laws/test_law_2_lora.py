"""Law 2 for LoRA with peft: base weights stay, checkpoints hold the adapters, resume is exact."""

import copy
import functools
import warnings

import pytest
import torch
from safetensors.torch import load_file

import surestep
from surestep.base.errors import CheckpointError
from surestep.trainer.dry_run import dry_run
from surestep.trainer.evaluator import evaluate_run
from tests import tiny
from tests.laws.support import plain
from tests.laws.support.hugging_face_models import SAMPLES, bert, gpt2, masked
from tests.laws.support.tasks import assert_moved, assert_same, session_of, snapshot, train
from tests.needs import needs

OPTIONS = {"max_steps": 8, "batch_size": 10, "micro_batch_size": 4}


def lora(build, dropout=0.1, **options):
    peft = needs("peft")  # here, because each process that collects this file would import it
    config = peft.LoraConfig(r=2, lora_dropout=dropout, **options)
    with warnings.catch_warnings():  # peft uses deprecated names of transformers
        warnings.simplefilter("ignore")
        return peft.get_peft_model(build(), config)


gpt2_lora = functools.partial(lora, gpt2(), target_modules=["c_attn"], fan_in_fan_out=True)
bert_lora = functools.partial(
    lora,
    bert("BertForSequenceClassification", num_labels=3),
    target_modules=["query", "value"],
    modules_to_save=["classifier"],
)


def task(model=gpt2_lora, **parts):
    return surestep.Task(model=model, loss="model", train=masked(), **parts)


def classes():
    labels = torch.arange(SAMPLES) % 3
    return {"input_ids": masked()["input_ids"], "labels": labels}


def base_of(model):
    return {
        name: parameter.detach().clone()
        for name, parameter in model.named_parameters()
        if "lora_" not in name
    }


def test_only_adapters_are_trained(tmp_path):
    model = gpt2_lora()
    before = base_of(model)
    session = train(task(model), tmp_path / "run", **OPTIONS)
    held = {
        id(parameter) for group in session.optimizer.param_groups for parameter in group["params"]
    }
    names = {name for name, parameter in model.named_parameters() if id(parameter) in held}
    assert names == {name for name, _ in model.named_parameters() if "lora_" in name}
    assert before.keys() == base_of(model).keys()
    assert all(torch.equal(value, before[name]) for name, value in base_of(model).items())


@pytest.mark.parametrize(
    ("make", "data"), [(gpt2_lora, masked), (bert_lora, classes)], ids=["gpt2", "bert"]
)
def test_checkpoint_holds_what_peft_would_save(make, data, tmp_path):
    model = make()
    with session_of(surestep.Task(model, "model", data()), tmp_path / "run", **OPTIONS) as session:
        next(session.steps())
        path = session.save()
    saved = load_file(path / "model.safetensors")
    expected = needs("peft").get_peft_model_state_dict(model)
    found = {
        name.replace(".default", "").replace(".modules_to_save", ""): v for name, v in saved.items()
    }
    assert found.keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in found.items())


def test_resume_is_bitwise_identical(tmp_path):
    whole = train(task(), tmp_path / "whole", **OPTIONS)
    with session_of(task(), tmp_path / "interrupted", **OPTIONS) as session:
        for result in session.steps():
            if result.step == 3:
                session.save()
                break
    resumed = train(task(), tmp_path / "interrupted", **OPTIONS)
    assert_same(snapshot(whole), snapshot(resumed))
    assert_moved(snapshot(whole), snapshot(session))


def test_split_batch_updates_adapters_as_the_usual_loop(tmp_path):
    make = functools.partial(gpt2_lora, dropout=0.0, init_lora_weights=False)
    torch.manual_seed(3)
    model = make()
    expected = make()
    expected.load_state_dict(model.state_dict())
    before = copy.deepcopy(model)
    rate, data = {"name": "sgd", "lr": 0.05, "momentum": 0.0, "weight_decay": 0.0}, masked()
    optimizer = torch.optim.SGD([e for e in expected.parameters() if e.requires_grad], lr=0.05)
    for step in range(4):
        rows = plain.order_of(SAMPLES, 0, 0)[step * 10 : step * 10 + 10]
        optimizer.zero_grad()
        expected(**{name: value[rows] for name, value in data.items()}).loss.backward()
        optimizer.step()
    options = {"max_steps": 4, "batch_size": 10, "micro_batch_size": 3, "max_grad_norm": "off"}
    train(task(model), tmp_path / "run", optim=rate, schedule={"name": "constant"}, **options)
    assert plain.distance(expected, model) <= 1e-6
    assert plain.distance(before, model) > 1e-4


def test_adapters_load_only_onto_the_same_base(tmp_path):
    model = gpt2_lora()
    session = train(task(model), tmp_path / "run", **OPTIONS)
    run = session.run
    with session_of(task(model), tmp_path / "two", **OPTIONS) as other:
        other.save()
    run = surestep.Run(tmp_path / "two")
    fresh = gpt2_lora()
    run.load_model(fresh)
    assert torch.equal(tiny.weights(fresh), tiny.weights(model))
    with torch.no_grad():
        changed = gpt2_lora()
        next(p for n, p in changed.named_parameters() if n.endswith("wte.weight")).add_(1)
    with pytest.raises(CheckpointError, match=r"different one: base_model.model.tra"):
        run.load_model(changed)


def start(tmp_path):
    """Write base weights that no seed would build."""
    base = gpt2()()
    torch.manual_seed(9)
    with torch.no_grad():
        for parameter in base.parameters():
            parameter.normal_(std=0.02)
    torch.save(base.state_dict(), tmp_path / "base.pt")
    return base, tmp_path / "base.pt"


def test_base_is_loaded_from_its_file_on_resume_too(tmp_path):
    base, path = start(tmp_path)
    whole = train(task(init=path), tmp_path / "whole", **OPTIONS)
    own = whole.model.get_base_model().state_dict()
    for name, value in base.state_dict().items():
        parts = name.replace("c_attn.", "c_attn.base_layer.")
        assert torch.equal(own[parts], value)
    with session_of(task(init=path), tmp_path / "interrupted", **OPTIONS) as session:
        next(session.steps())
        session.save()
    resumed = train(task(init=path), tmp_path / "interrupted", **OPTIONS)
    assert_same(snapshot(whole), snapshot(resumed))
    with pytest.raises(CheckpointError, match=r"the same Task\(init=...\)"):
        train(task(), tmp_path / "interrupted", **OPTIONS)


def test_closed_run_is_evaluated_on_its_base(tmp_path):
    _, path = start(tmp_path)
    parts = {"init": path, "val": masked()}
    config = surestep.Config(**OPTIONS, logging={"progress": "quiet"})
    with surestep.prepare(task(**parts), config, run=tmp_path / "run") as session:
        next(session.steps())
        expected = session.evaluate()["val/loss"]
        session.save()
    run = surestep.Run(tmp_path / "run")
    _, metrics = evaluate_run(run, task(**parts), config, split="val", which="last")
    assert metrics["val/loss"] == pytest.approx(expected)


def test_full_model_is_saved_on_request(tmp_path):
    with session_of(task(), tmp_path / "run", checkpoint={"weights": "all"}, **OPTIONS) as session:
        path = session.save()
        assert load_file(path / "model.safetensors").keys() == session.model.state_dict().keys() - {
            "base_model.model.lm_head.weight"  # tied: saved under its other name
        }


def test_dry_run_loads_the_checkpoint_it_wrote():
    config = surestep.Config(**OPTIONS)
    acts = dry_run(task(val=masked()), config)
    assert acts[-1].result == "bit for bit"


def test_frozen_weights_of_any_model_are_left_out_on_request(tmp_path):
    def build():
        model = tiny.model()
        model[0].requires_grad_(False)
        return model

    parts = {"model": build, "loss": torch.nn.CrossEntropyLoss(), "train": tiny.data()}
    settings = {"checkpoint": {"weights": "trained"}, "max_steps": 4, "batch_size": 8}
    whole = train(surestep.Task(**parts), tmp_path / "whole", **settings)
    with session_of(surestep.Task(**parts), tmp_path / "interrupted", **settings) as session:
        next(session.steps())
        path = session.save()
    assert load_file(path / "model.safetensors").keys() == {"3.weight", "3.bias"}
    resumed = train(surestep.Task(**parts), tmp_path / "interrupted", **settings)
    assert_same(snapshot(whole), snapshot(resumed))


def test_activation_checkpointing_works_with_adapters(tmp_path):
    models = [gpt2_lora(dropout=0.0) for _ in range(2)]
    train(task(models[0]), tmp_path / "off", **OPTIONS)
    train(task(models[1]), tmp_path / "on", activation_checkpointing="on", **OPTIONS)
    assert plain.distance(*models) <= 1e-6
