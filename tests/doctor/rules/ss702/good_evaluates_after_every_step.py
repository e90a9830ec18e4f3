# expect: nothing
import torch

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = torch.nn.Linear(4, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(2, 8, 4, device=device)


def train():
    model.train()
    optimizer.zero_grad()
    loss = (model(x) - 1).pow(2).mean()
    loss.backward()
    optimizer.step()
    return float(loss)


@torch.no_grad()
def evaluate():
    model.eval()
    return float((model(y) - 1).pow(2).mean())


for epoch in range(10):
    print(epoch, train(), evaluate())
