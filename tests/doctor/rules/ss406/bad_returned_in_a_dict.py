# expect: SS406 line 14
import torch


def train(model, epochs):
    optimizer = torch.optim.AdamW(model.parameters())
    best = {"loss": 1e9, "state": model.state_dict()}
    for epoch in range(epochs):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
        if loss < best["loss"]:
            best = {"loss": loss.item(), "epoch": epoch, "state": model.state_dict()}
    return best


model = torch.nn.Linear(4, 1)
model.load_state_dict(train(model, 5)["state"])
