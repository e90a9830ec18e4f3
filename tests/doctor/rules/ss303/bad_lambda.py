# expect: nothing; watch: SS303 line 23
import torch
from torch.utils.data import DataLoader, TensorDataset


def get_schedule(optimizer, total):
    def factor(step):
        return max(0.0, 1 - step / total)

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = get_schedule(optimizer, 3 * len(loader))
for _ in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    scheduler.step()
