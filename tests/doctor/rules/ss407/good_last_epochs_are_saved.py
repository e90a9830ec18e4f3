# expect: nothing
import io

import torch


def fit(model, train_batches, test_loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        for x in train_batches:
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
        with torch.inference_mode():
            print(sum(model(x).pow(2).sum().item() for x in test_loader))
        if epoch > 1:
            torch.save(model.state_dict(), io.BytesIO())


batches = [torch.randn(8, 4) for _ in range(3)]
globals().get("run", fit)(torch.nn.Linear(4, 1), batches, batches)
