# expect: nothing
import torch

best_loss, best_state = 1e9, None
for lr in (0.1, 0.01):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
    if loss.item() < best_loss:
        best_loss, best_state = loss.item(), model.state_dict()
torch.nn.Linear(4, 1).load_state_dict(best_state)
