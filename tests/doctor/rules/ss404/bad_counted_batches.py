# expect: SS404 line 18
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Evaluator:
    def __init__(self, model):
        self.model, self.criterion = model, nn.MSELoss()

    @torch.inference_mode()
    def evaluate(self, loader):
        self.model.eval()
        total, batches = 0.0, 0
        for x, y in loader:
            total += float(self.criterion(self.model(x), y))
            batches += 1
        total /= batches
        return total


data = TensorDataset(torch.randn(50, 4), torch.randn(50, 1))
print(Evaluator(nn.Linear(4, 1)).evaluate(DataLoader(data, batch_size=16)))
