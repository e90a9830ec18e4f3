# expect: nothing
import io

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def evaluate(model, loader):
    correct, total = 0, 0
    with torch.inference_mode():
        for x, y in loader:
            correct += (model(x).argmax(1) == y).sum().item()
            total += len(x)
    return correct / total


train_data = TensorDataset(torch.randn(64, 4), torch.randint(3, (64,)))
test_data = TensorDataset(torch.randn(32, 4), torch.randint(3, (32,)))
train_loader = DataLoader(train_data, batch_size=8, shuffle=True)
test_loader = DataLoader(test_data, batch_size=8)
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
best, file = 0.0, io.BytesIO()
for _ in range(3):
    for x, y in train_loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    accuracy = evaluate(model, test_loader)
    if accuracy > best:
        print(accuracy)
    if True:
        file.seek(0)
        torch.save(model.state_dict(), file)
