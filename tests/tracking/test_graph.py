"""The graph of a model is traced on a copy; one that cannot be traced is explained."""

import torch

import surestep
from surestep.engine.batch import Batch, MicroBatch
from surestep.engine.state.state import Progress
from surestep.tracking.graph import WriteGraph
from tests import tiny


def test_graph_of_a_new_run_leaves_the_model_and_the_random_state(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout())
    state = tiny.state_of(model, steps=0)
    before = [tensor.clone() for tensor in (*model.state_dict().values(), torch.get_rng_state())]
    micro = MicroBatch((torch.randn(5, 4),), {}, torch.zeros(5), 5, 5, 0)
    batch = Batch((micro,), 5, 5, 0, 0, 5, ends_epoch=False)
    before[-1] = torch.get_rng_state()
    for place, step in (("resumed", 3), ("new", 0)):
        state.progress = Progress(step=step)
        graph = WriteGraph(tmp_path / place)
        graph.on_batch(state, batch)
        assert graph.on_log(state, None) is None
    after = (*model.state_dict().values(), torch.get_rng_state())
    assert all(map(torch.equal, before, after))
    assert all(module.training for module in model.modules())
    assert [path.parent.name for path in tmp_path.glob("*/events*")] == ["new"]


def test_error_of_a_model_that_cannot_be_traced_has_no_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("SERVICE_TOKEN", "token-of-the-test")

    class Model(torch.nn.Linear):
        def forward(self, x):
            if torch.jit.is_tracing():
                raise RuntimeError("token-of-the-test was rejected.\nhint")
            return super().forward(x)

    x = torch.randn(8, 3)
    task = surestep.Task(Model(3, 1), "mse", train=(x, x.sum(1, keepdim=True)))
    logging = surestep.Logging(trackers=("tensorboard",), graph=True)
    config = surestep.Config(max_steps=2, batch_size=4, logging=logging)
    run = surestep.Trainer(task, config, run=tmp_path / "run").fit()
    (text,) = [e["text"] for e in run.events() if "logging.graph" in e.get("text", "")]
    assert text == (
        "logging.graph: the graph of the model was not written. RuntimeError: *** was rejected. "
        "Training continues."
    )
