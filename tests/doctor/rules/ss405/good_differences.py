# expect: nothing
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(8, 4)
rewards = torch.randn(8, 8)  # as many samples of each row as rows
for _ in range(4):
    values = model(x)
    advantages = rewards - values  # a baseline of each row
    loss = advantages.pow(2).mean() + (values - x.sum(1, keepdim=True)).abs().mean()
    loss = loss + (values - values.detach().T).relu().mean()  # all pairs
    pairs = values.squeeze(1).unsqueeze(0) - x.sum(1).unsqueeze(1)
    optimizer.zero_grad()
    (loss + pairs.abs().mean()).backward()
    optimizer.step()
