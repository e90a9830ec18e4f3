# expect: SS101 line 12; watch: skip, needs ignite
import torch
from ignite.engine import Engine

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(engine, batch):
    loss = model(batch).pow(2).mean()
    loss.backward()
    optimizer.step()
    return loss.item()


Engine(train).run([torch.randn(8, 4) for _ in range(10)])
