# expect: SS104 line 10
import torch


def train_step(model, optimizer, batch, max_norm=1.0):
    optimizer.zero_grad()
    loss = model(batch).pow(2).mean()
    loss.backward()
    optimizer.step()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    return loss.item()


net = torch.nn.Linear(4, 1)
sgd = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(5):
    train_step(net, sgd, torch.randn(8, 4))
