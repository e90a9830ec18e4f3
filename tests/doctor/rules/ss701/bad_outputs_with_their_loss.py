# expect: SS701 line 13; watch: nothing
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(compute):
    outputs = []
    for _ in range(16):
        output = compute(torch.randn(8, 4))
        output["loss"].backward()
        outputs.append(output)
        optimizer.step()
        optimizer.zero_grad()
    return len(outputs)
