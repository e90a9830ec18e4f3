# expect: SS409 line 15; ranks: SS409 line 15
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Tester:
    def __init__(self, model, data):
        self.model = model.eval()
        sampler = DistributedSampler(data, shuffle=False)
        self.loader = DataLoader(data, batch_size=8, sampler=sampler)

    @torch.inference_mode()
    def test(self):
        hits = sum((self.model(x).argmax(1) == y).sum() for x, y in self.loader)
        return hits.item() / len(self.loader.sampler)


torch.distributed.init_process_group("gloo")
data = TensorDataset(torch.randn(64, 4), torch.randint(3, (64,)))
accuracy = Tester(nn.Linear(4, 3), data).test()
if torch.distributed.get_rank() == 0:
    print(accuracy)
