# expect: SS401 line 14; watch: nothing
import torch


class Runner:
    def __init__(self):
        self.step = 0

    def train(self, model, optimizer, scaler, batches, held_out, every):
        model.train()
        for batch in batches:
            info = {"step": self.step}
            with model.no_sync() if self.step % 2 else torch.autocast("cuda"):
                info["loss"] = model(batch).mean()
            scaler.scale(info["loss"]).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            if self.step % every == 0:
                self.validate(model, held_out)
            self.step += 1

    def validate(self, model, batches):
        model.eval()
        with torch.no_grad():
            return [model(batch).mean().item() for batch in batches]
