# expect: nothing
import torch

nets = [torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)]
optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]
scaler = torch.amp.GradScaler("cpu")
for _ in range(3):
    for net, optimizer in zip(nets, optimizers):
        optimizer.zero_grad()
        scaler.scale(net(torch.randn(8, 4)).pow(2).mean()).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
    scaler.update()
