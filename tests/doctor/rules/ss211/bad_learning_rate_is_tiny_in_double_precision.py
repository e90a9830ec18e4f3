# expect: nothing; watch: SS211 line 10
import torch

model = torch.nn.Linear(16, 4).double()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
for _ in range(600):
    x, y = torch.randn(8, 16).double(), torch.randint(4, (8,))
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
