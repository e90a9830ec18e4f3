# expect: SS402 line 16
import torch
import torch.nn as nn

X, y = torch.randn(64, 4), torch.randint(0, 2, (64,))
X_train, y_train, X_test, y_test = X[:48], y[:48], X[48:], y[48:]
net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
loss_fn = nn.CrossEntropyLoss()
opt = torch.optim.Adam(net.parameters())
for _ in range(3):
    net.train()
    opt.zero_grad()
    loss_fn(net(X_train), y_train).backward()
    opt.step()
    with torch.inference_mode():
        print(loss_fn(net(X_test), y_test).item())
