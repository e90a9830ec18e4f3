# expect: nothing
import torch


def fit(model, train_batches, test_loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for x in train_batches:
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
        with torch.inference_mode():
            test_loss = sum(model(x).pow(2).sum().item() for x in test_loader)
        if test_loss < 0.1:
            print("small", test_loss)


batches = [torch.randn(8, 4) for _ in range(3)]
globals().get("run", fit)(torch.nn.Linear(4, 1), batches, batches)
