# expect: SS501 line 11, SS501 line 12; watch: SS501 line 11
import torch
import torch.nn.functional as F
from torch.distributions import Categorical

torch.manual_seed(0)
actor = torch.nn.Linear(4, 3)
optimizer = torch.optim.Adam(actor.parameters())
for _ in range(10):
    probabilities = F.softmax(actor(torch.randn(8, 4)), dim=1)
    log_policy = F.log_softmax(probabilities, dim=1)
    again = Categorical(logits=probabilities)
    loss = (probabilities * (log_policy - torch.randn(8, 3))).sum(1).mean()
    loss = loss - again.entropy().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
