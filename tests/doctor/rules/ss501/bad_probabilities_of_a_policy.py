# expect: SS501 line 10
import torch
from torch.distributions import Categorical

torch.manual_seed(0)
actor = torch.nn.Linear(4, 3)
optimizer = torch.optim.Adam(actor.parameters())
for _ in range(10):
    policy = Categorical(logits=actor(torch.randn(8, 4)))
    log_policy = policy.probs.log_softmax(1)
    loss = (policy.probs * (log_policy - torch.randn(8, 3))).sum(1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
