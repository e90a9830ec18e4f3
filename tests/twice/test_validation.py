"""Evaluations: of the weights at that step, over all samples, in the model's evaluation state."""

import torch
from torch import nn

import surestep
from tests.twice.compare import assert_same, in_batches, plain_config, prepare

X = torch.randn(53, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = X[:, :2] @ torch.tensor([[1.0], [-2.0]], dtype=torch.float64)


def test_validation_loss_is_the_mean_over_samples_with_a_last_batch_of_one() -> None:
    torch.manual_seed(0)
    net = nn.Linear(4, 1).double()
    with torch.no_grad():
        plain = nn.functional.mse_loss(net(X[:43]), Y[:43])

    task = surestep.Task(net, nn.MSELoss(), train=(X, Y), val=(X[:43], Y[:43]))
    config = plain_config(max_steps=1, batch_size=7, validation={"batch_size": 7})
    ours = prepare(task, config).evaluate()

    assert_same(float(plain), ours["val/loss"])


def test_steps_equal_a_loop_by_hand_with_a_last_batch_of_four() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    start = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    optimizer, losses = torch.optim.SGD(net.parameters(), lr=0.1), []
    for _ in range(2):
        for x, y in in_batches(7, X, Y):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(net(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    plain = [losses, list(net.parameters())]

    ours_net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    ours_net.load_state_dict(start)
    task = surestep.Task(ours_net, nn.MSELoss(), train=(X, Y))
    session = prepare(task, plain_config(epochs=2, batch_size=7))
    ours = [[float(result.loss) for result in session.steps()], list(ours_net.parameters())]

    assert_same(plain, ours)
