# expect: SS405 line 14; watch: nothing
import torch
import torch.nn.functional as F

model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(8, 4), torch.randint(0, 2, (8,)).float()
for _ in range(3):
    logits = model(x)
    loss = F.binary_cross_entropy_with_logits(logits.squeeze(1), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(((logits > 0) == y).float().mean())
