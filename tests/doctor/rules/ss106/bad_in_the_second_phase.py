# expect: nothing; watch: SS106 line 12
import torch


def train(model, steps, is_trained):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).pow(2).mean()
        if is_trained:
            loss.backward()
        optimizer.step()


train(torch.nn.Linear(4, 1), 40, True)
train(torch.nn.Linear(4, 1), 15, False)
