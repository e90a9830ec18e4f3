"""A trainer like that of Hugging Face: arguments, compute_loss, training_step, a subclass."""

import math
import os
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset, RandomSampler, SequentialSampler


@dataclass
class TrainingArguments:
    output_dir: str = "output"
    num_train_epochs: int = 3
    per_device_train_batch_size: int = 8
    per_device_eval_batch_size: int = 16
    gradient_accumulation_steps: int = 2
    learning_rate: float = 2e-2
    warmup_ratio: float = 0.1
    weight_decay: float = 0.01
    max_grad_norm: float = 5.0
    seed: int = 42
    report_to: list = field(default_factory=list)


@dataclass
class ModelOutput:
    logits: torch.Tensor
    loss: torch.Tensor = None


class BagOfWords(nn.Module):
    def __init__(self, vocab_size=32, dim=24, num_labels=2):
        super().__init__()
        self.num_labels = num_labels
        self.embeddings = nn.Embedding(vocab_size, dim)
        self.LayerNorm = nn.LayerNorm(dim)
        self.dense = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(0.1)
        self.classifier = nn.Linear(dim, num_labels)

    def forward(self, input_ids, labels=None):
        pooled = self.LayerNorm(self.embeddings(input_ids).mean(dim=1))
        logits = self.classifier(self.dropout(torch.tanh(self.dense(pooled))))
        loss = None
        if labels is not None:
            loss_fct = nn.CrossEntropyLoss()
            loss = loss_fct(logits.view(-1, self.num_labels), labels.view(-1))
        return ModelOutput(logits=logits, loss=loss)


class Reviews(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(32, (n, 7), generator=g)
        self.labels = ((self.ids < 12).sum(1) > (self.ids > 19).sum(1)).long()

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.labels[i]}


class Trainer:
    def __init__(self, model, args, train_dataset, eval_dataset=None, compute_metrics=None):
        self.model = model
        self.args = args
        self.train_dataset = train_dataset
        self.eval_dataset = eval_dataset
        self.compute_metrics = compute_metrics
        self.optimizer = None
        self.lr_scheduler = None
        torch.manual_seed(args.seed)

    def get_train_dataloader(self):
        return DataLoader(
            self.train_dataset,
            batch_size=self.args.per_device_train_batch_size,
            sampler=RandomSampler(self.train_dataset),
        )

    def get_eval_dataloader(self):
        return DataLoader(
            self.eval_dataset,
            batch_size=self.args.per_device_eval_batch_size,
            sampler=SequentialSampler(self.eval_dataset),
        )

    def create_optimizer_and_scheduler(self, num_training_steps):
        no_decay = ["bias", "LayerNorm.weight"]
        grouped = [
            {
                "params": [
                    p
                    for n, p in self.model.named_parameters()
                    if not any(part in n for part in no_decay)
                ],
                "weight_decay": self.args.weight_decay,
            },
            {
                "params": [
                    p
                    for n, p in self.model.named_parameters()
                    if any(part in n for part in no_decay)
                ],
                "weight_decay": 0.0,
            },
        ]
        self.optimizer = torch.optim.AdamW(grouped, lr=self.args.learning_rate)
        warmup = math.ceil(num_training_steps * self.args.warmup_ratio)

        def lr_lambda(current_step):
            if current_step < warmup:
                return float(current_step + 1) / float(max(1, warmup))
            rest = float(num_training_steps - current_step)
            return max(0.0, rest / float(max(1, num_training_steps - warmup)))

        self.lr_scheduler = LambdaLR(self.optimizer, lr_lambda)

    def compute_loss(self, model, inputs, return_outputs=False):
        outputs = model(**inputs)
        return (outputs.loss, outputs) if return_outputs else outputs.loss

    def training_step(self, model, inputs):
        model.train()
        loss = self.compute_loss(model, inputs)
        if self.args.gradient_accumulation_steps > 1:
            loss = loss / self.args.gradient_accumulation_steps
        loss.backward()
        return loss.detach()

    def train(self):
        dataloader = self.get_train_dataloader()
        steps_per_epoch = math.ceil(len(dataloader) / self.args.gradient_accumulation_steps)
        self.create_optimizer_and_scheduler(steps_per_epoch * self.args.num_train_epochs)
        tr_loss = torch.tensor(0.0)
        self.model.zero_grad()
        for epoch in range(self.args.num_train_epochs):
            for step, inputs in enumerate(dataloader):
                tr_loss += self.training_step(self.model, inputs)
                if (step + 1) % self.args.gradient_accumulation_steps == 0 or (
                    step + 1 == len(dataloader)
                ):
                    nn.utils.clip_grad_norm_(self.model.parameters(), self.args.max_grad_norm)
                    self.optimizer.step()
                    self.lr_scheduler.step()
                    self.model.zero_grad()
            print(f"epoch {epoch} loss {tr_loss.item():.4f} {self.evaluate()}")
            tr_loss -= tr_loss
        self.save_model()

    def prediction_step(self, model, inputs):
        with torch.no_grad():
            loss, outputs = self.compute_loss(model, inputs, return_outputs=True)
        return loss.detach(), outputs.logits, inputs["labels"]

    def evaluate(self):
        self.model.eval()
        all_logits, all_labels, total = [], [], 0.0
        for inputs in self.get_eval_dataloader():
            loss, logits, labels = self.prediction_step(self.model, inputs)
            total += loss.item() * len(labels)
            all_logits.append(logits)
            all_labels.append(labels)
        logits, labels = torch.cat(all_logits), torch.cat(all_labels)
        metrics = self.compute_metrics(logits, labels) if self.compute_metrics else {}
        return {"eval_loss": total / len(labels), **metrics}

    def save_model(self):
        os.makedirs(self.args.output_dir, exist_ok=True)
        torch.save(self.model.state_dict(), os.path.join(self.args.output_dir, "weights.bin"))


class WeightedTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False):
        outputs = model(input_ids=inputs["input_ids"])
        weight = torch.tensor([1.0, 1.3])
        loss = nn.functional.cross_entropy(outputs.logits, inputs["labels"], weight=weight)
        return (loss, outputs) if return_outputs else loss


def compute_metrics(logits, labels):
    return {"accuracy": (logits.argmax(-1) == labels).float().mean().item()}


if __name__ == "__main__":
    trainer = WeightedTrainer(
        model=BagOfWords(),
        args=TrainingArguments(),
        train_dataset=Reviews(200, 0),
        eval_dataset=Reviews(48, 1),
        compute_metrics=compute_metrics,
    )
    trainer.train()
