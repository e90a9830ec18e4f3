# expect: nothing
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from transformers import TrainingArguments

callbacks = [
    ModelCheckpoint(monitor="val_acc", mode="max"),
    ModelCheckpoint(monitor="val_acc", save_top_k=-1),
    ModelCheckpoint(monitor="val_loss"),
    ModelCheckpoint(monitor="val_loss_of_accuracy", mode="max"),
    EarlyStopping("val_mse"),
]
arguments = [
    TrainingArguments("runs", metric_for_best_model="eval_loss"),
    TrainingArguments("runs", metric_for_best_model="f1"),
    TrainingArguments("runs", metric_for_best_model="wer", greater_is_better=False),
]
