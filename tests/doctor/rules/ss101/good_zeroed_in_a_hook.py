# expect: nothing; watch: skip, needs lightning
import lightning
import torch


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        optimizer = self.optimizers()
        self.manual_backward(self.layer(batch).pow(2).mean())
        optimizer.step()

    def on_train_batch_start(self, batch, index):
        self.optimizers().zero_grad()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
