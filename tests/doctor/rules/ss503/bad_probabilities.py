# expect: SS503 line 10
import torch
import torch.nn.functional as F

model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    x, y = torch.randn(8, 4), torch.randint(3, (8,))
    output = F.softmax(model(x), dim=1)
    loss = F.nll_loss(output, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
