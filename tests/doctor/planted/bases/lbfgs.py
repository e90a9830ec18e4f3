"""L-BFGS with a closure, on all data at once."""

import torch
from torch import nn

torch.manual_seed(0)
t = torch.linspace(0, 12, 60)
series = torch.stack([torch.sin(t + phase) for phase in torch.linspace(0, 3, 8)])


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(1, 12)
        self.linear = nn.Linear(12, 1)

    def forward(self, inputs):
        outputs = []
        h = torch.zeros(inputs.size(0), 12)
        for input_t in inputs.split(1, dim=1):
            h = self.cell(input_t, h)
            outputs += [self.linear(h)]
        return torch.cat(outputs, dim=1)


inputs, targets = series[2:, :-1], series[2:, 1:]
test_input, test_target = series[:2, :-1], series[:2, 1:]
seq = Sequence()
criterion = nn.MSELoss()
optimizer = torch.optim.LBFGS(seq.parameters(), lr=0.5, max_iter=3)

for i in range(12):

    def closure():
        optimizer.zero_grad()
        out = seq(inputs)
        loss = criterion(out, targets)
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    with torch.no_grad():
        pred = seq(test_input)
        test_loss = criterion(pred, test_target)
    print(i, float(loss), test_loss.item())
