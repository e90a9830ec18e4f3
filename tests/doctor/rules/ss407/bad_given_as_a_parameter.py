# expect: SS407 line 19
import copy

import torch


def fit(model, train_batches, test_loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lowest, best_state = float("inf"), None
    for _ in range(2):
        for x in train_batches:
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
        with torch.inference_mode():
            test_loss = 0.0
            for x in test_loader:
                test_loss += model(x).pow(2).sum().item()
        if test_loss < lowest:
            lowest = test_loss
            best_state = copy.deepcopy(model.state_dict())
    model.load_state_dict(best_state)


batches = [torch.randn(8, 4) for _ in range(3)]
globals().get("run", fit)(torch.nn.Linear(4, 1), batches, batches)
