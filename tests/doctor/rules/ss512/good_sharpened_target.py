# expect: nothing
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    logits = model(torch.randn(8, 4))
    target = F.softmax(logits.detach() / 0.5, dim=1)
    loss = F.kl_div(F.log_softmax(logits, dim=1), target, reduction="batchmean")
    pairs = F.cosine_similarity(logits.unsqueeze(0), logits.unsqueeze(1), dim=2)
    loss = loss + F.mse_loss(logits[1:], logits[:-1]) + pairs.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
