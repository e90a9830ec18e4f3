# expect: nothing
import torch
from torch.distributions import Categorical

torch.manual_seed(0)
actor = torch.nn.Linear(4, 3)
optimizer = torch.optim.Adam(actor.parameters())
for _ in range(10):
    logits = actor(torch.randn(8, 4))
    policy = Categorical(probs=logits.softmax(1))
    other = Categorical(logits=policy.logits)
    log_policy = policy.logits.log_softmax(1)
    loss = (policy.probs * (log_policy - torch.randn(8, 3))).sum(1).mean()
    loss = loss - other.entropy().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
