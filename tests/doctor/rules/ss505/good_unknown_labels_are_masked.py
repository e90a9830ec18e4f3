# expect: nothing
import torch
import torch.nn.functional as F

model = torch.nn.Linear(4, 3)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(10):
    labels = torch.randint(-1, 2, (16, 3)).float()  # -1 is unknown
    known = labels >= 0
    losses = F.binary_cross_entropy_with_logits(model(torch.randn(16, 4)), labels, reduction="none")
    optimizer.zero_grad()
    losses[known].mean().backward()
    optimizer.step()
