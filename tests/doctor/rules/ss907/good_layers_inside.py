# expect: nothing; ranks: skip, needs a GPU
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2)
        self.encoder = nn.TransformerEncoder(layer, 4)


torch.distributed.init_process_group("gloo")
print(FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy({nn.TransformerEncoderLayer})))
