# expect: nothing
import torch
from torch import nn

model = nn.Linear(4, 2)
model.eval()
correct = 0
for x, y in [(torch.randn(8, 4), torch.randint(2, (8,))) for _ in range(3)]:
    x.requires_grad_(True)
    loss = nn.functional.cross_entropy(model(x), y)
    (gradient,) = torch.autograd.grad(loss, x)
    with torch.no_grad():
        correct += (model(x + 0.1 * gradient.sign()).argmax(1) == y).sum().item()
print(correct)
