"""The graph of a model that cannot be traced is explained, and training continues."""

import torch

import surestep


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
