# expect: SS204 line 18; watch: nothing
from torch import nn


def build(kind):
    layer = nn.Linear(4, 4)
    setattr(layer, "kind", kind)
    return layer


class Merge(nn.Module):
    def __init__(self, layers=None):
        super().__init__()
        self.layers = None
        if layers is not None:
            if not layers:
                raise ValueError("no layers")
            self.layers = []
            for layer in layers:
                if isinstance(layer, nn.Module):
                    self.layers.append(layer)
                else:
                    self.layers.append(build(layer))

    def forward(self, x):
        return sum(layer(x) for layer in self.layers)
