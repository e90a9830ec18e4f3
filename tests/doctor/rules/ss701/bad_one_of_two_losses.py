# expect: SS701 line 15; watch: SS701 line 13
import torch

first, second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (first, second)]
losses = []
for _ in range(20):
    optimizers[1].zero_grad()
    loss = second(first(torch.randn(8, 4)).detach()).pow(2).mean()
    loss.backward()
    optimizers[1].step()
    optimizers[0].zero_grad()
    second(first(torch.randn(8, 4))).mean().backward()
    optimizers[0].step()
    losses.append(loss)
print(sum(losses) / len(losses))
