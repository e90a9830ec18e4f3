import re
from dataclasses import replace

import pytest

from surestep.base.errors import ConfigError
from tests.tiny import GIVEN, GPU, LOADED, VALIDATED, decide

COMPLEX = replace(GIVEN, floating=False)
SPARSE = replace(GIVEN, sparse=("table",))


@pytest.mark.parametrize(
    ("said", "given", "sentence"),
    [
        ({"device": "cuda"}, GIVEN, "device='cuda' is not here. This machine has: cpu."),
        ({"device": "meta"}, GIVEN, "device='meta' is not here"),
        ({"device": "tpu"}, GIVEN, "device='tpu' is not here"),
        ({"precision": "tf32"}, GIVEN, "needs an NVIDIA GPU .* Use precision='fp32' or 'bf16'"),
        ({"micro_batch_size": 65}, GIVEN, "micro_batch_size=65 is larger .* Use at most 64"),
        ({"batch_size": 5}, LOADED, "batch_size=5, but the DataLoader .* batch_size=10"),
        ({"data.shuffle": True}, LOADED, "shuffle=False. Say it in one place"),
        ({"data.drop_last": False}, LOADED, "drop_last=True"),
        ({"data.num_workers": 0}, LOADED, "num_workers=3"),
        ({"data.persistent_workers": True}, LOADED, "persistent_workers=False"),
        ({"data.prefetch_factor": 9}, LOADED, "prefetch_factor=4"),
        ({"data.drop_last": True, "batch_size": 101}, GIVEN, "drops every batch: 100 samples"),
        ({"epochs": None}, GIVEN, "Nothing says how long .* Say epochs=10 or max_steps=1000"),
        ({"optim.lr": 0.1}, replace(GIVEN, own_optimizer=True), "optim.lr is said, but the Task"),
        (
            {"optim.name": "sgd", "optim.eps": 0.1},
            GIVEN,
            "requires optim.name='adadelta', 'adafactor', .* but optim.name is 'sgd'",
        ),
        ({"optim.name": "sgd", "optim.nesterov": True}, GIVEN, "say optim.momentum=0.9"),
        (
            {
                **{"optim.name": "sgd", "optim.nesterov": True, "optim.momentum": 0.9},
                "optim.dampening": 0.1,
            },
            *(GIVEN, "needs optim.dampening=0"),
        ),
        ({"optim.name": "adamw8bit"}, GIVEN, r"Install it: pip install 'surestep\[bnb\]'"),
        ({"optim.name": "muon"}, GIVEN, "this model has none. Say optim.name='adamw'"),
        ({"optim.name": "muon"}, COMPLEX, "takes no complex parameters"),
        ({"optim.name": "adafactor"}, COMPLEX, "takes no complex parameters"),
        ({"optim.implementation": "fused"}, COMPLEX, "takes no complex .* Say 'foreach' or"),
        ({"optim.name": "adamw"}, SPARSE, "that of table is sparse. Say .*optim.name='sgd'"),
        ({"optim.name": "sparse_adam"}, GIVEN, "Build a table with nn.Embedding"),
        (
            {"optim.name": "sgd", "optim.implementation": "foreach"},
            *(SPARSE, "gradient of table is sparse. Say 'for_loop'"),
        ),
        (
            {"optim.name": "sgd", "optim.momentum": 0.9, "optim.dampening": 0.5},
            *(SPARSE, "grow with every step. Leave it out"),
        ),
        ({"optim.adamw_lr": 0.1}, replace(SPARSE, dense=False), "and here it moves everything"),
        ({"optim.weight_decay": 0.1}, replace(SPARSE, dense=False), "has no weight decay"),
        ({"optim.name": "rprop", "optim.weight_decay": 0.1}, GIVEN, "rprop has no weight decay"),
        ({"optim.name": "lbfgs", "max_grad_norm": 1.0}, GIVEN, "L-BFGS must know whole"),
        ({"optim.name": "lbfgs", "clip_value": 1.0}, GIVEN, "clip_value=1.0 would clip a gradient"),
        ({"optim.name": "lbfgs", "precision": "fp16"}, GIVEN, "Say precision='bf16' or 'fp32'"),
        ({"optim.name": "adafactor", "optim.eps": 1e-3}, GIVEN, "adafactor takes two numbers"),
        ({"optim.eps": (1e-3, 1e-3)}, GIVEN, "every other optimizer one"),
        ({"clip_value": 1.0, "max_grad_norm": 1.0}, GIVEN, "two ways to clip. Say one"),
        ({"schedule.warmup": "3 steps"}, GIVEN, "is 3 steps, longer than the run of 2 steps"),
        (
            {
                **{"schedule.name": "one_cycle", "schedule.three_phase": True},
                "schedule.pct_start": 0.6,
            },
            *(GIVEN, "leaves no time: .* Use at most 0.5"),
        ),
        (
            {"validation.metric": "f1"},
            VALIDATED,
            "Measured: val/loss, val/accuracy, val/score, far",
        ),
        ({"validation.metric": "score"}, VALIDATED, "Say validation.mode='max' or 'min'"),
    ],
)
def test_a_wish_that_cannot_be_kept_is_refused_with_what_to_type(said, given, sentence):
    with pytest.raises(ConfigError) as caught:
        decide(said, given=given)
    assert re.search(sentence, str(caught.value)), caught.value


@pytest.mark.parametrize(
    "said", [{"batch_size": 10}, {"data.shuffle": False}, {"data.num_workers": 3}]
)
def test_what_a_loader_says_too_may_be_said(said):
    assert decide(said, given=LOADED).batch_size == 10


@pytest.mark.parametrize("said", ["validation.every", "validation.batch_size", "validation.mode"])
def test_validation_without_data_is_refused(said):
    value = {"validation.every": "1 epoch", "validation.batch_size": 3, "validation.mode": "max"}
    with pytest.raises(ConfigError, match="val"):
        decide({said: value[said]})


def test_a_device_by_number_must_be_here():
    assert decide({"device": "cuda:0"}, GPU).device.index == 0
    with pytest.raises(ConfigError, match="This machine has: cpu, cuda:0"):
        decide({"device": "cuda:1"}, GPU)
