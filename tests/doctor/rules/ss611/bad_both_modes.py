# expect: SS611 line 6
import torch

torch.manual_seed(0)
torch.backends.cudnn.deterministic = True
torch.backends.cudnn.benchmark = True
model = torch.nn.Conv2d(1, 4, 3)
