# expect: SS701 line 10; watch: SS701 line 20
import torch


class Meter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, value, count):
        self.sum += value * count
        self.count += count


model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
meter = Meter()
for _ in range(12):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    meter.update(loss, 8)
