# expect: SS412 line 6, SS412 line 7, SS412 line 8
import lightning.pytorch as pl
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

callbacks = [
    ModelCheckpoint(monitor="val_acc", save_top_k=1),
    ModelCheckpoint(monitor="val/loss", mode="max"),
    EarlyStopping("valid_accuracy", patience=3),
]
trainer = pl.Trainer(max_epochs=50, callbacks=callbacks)
