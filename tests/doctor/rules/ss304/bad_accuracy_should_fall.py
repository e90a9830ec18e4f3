# expect: SS304 line 23; watch: nothing
import torch


class Learner:
    def __init__(self) -> None:
        self.net = torch.nn.Linear(4, 2)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(self.opt, patience=2)

    def evaluate(self) -> float:
        self.net.eval()
        with torch.no_grad():
            return self.net(torch.randn(8, 4)).argmax(1).float().mean().item()

    def fit(self) -> None:
        for _ in range(5):
            self.net.train()
            self.opt.zero_grad()
            self.net(torch.randn(8, 4)).pow(2).mean().backward()
            self.opt.step()
            val_acc = self.evaluate()
            self.plateau.step(val_acc)


Learner().fit()
