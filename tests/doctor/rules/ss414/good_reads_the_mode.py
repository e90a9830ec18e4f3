# expect: nothing
import torch


class Net(torch.nn.Module):
    def train(self, mode=True):
        if mode:
            super().train()
        else:
            super().train(False)
        return self


print(Net().eval().training)
