# expect: SS412 line 4, SS412 line 10
from transformers import TrainingArguments

recognition = TrainingArguments(
    output_dir="runs",
    eval_strategy="epoch",
    load_best_model_at_end=True,
    metric_for_best_model="wer",
)
tagging = TrainingArguments(
    output_dir="runs", metric_for_best_model="eval_f1", greater_is_better=False
)
