"""What the arguments of transformers and the flags of google-research/bert call the fields of a config."""

from collections.abc import Iterable

# Names there -> ours; where two are given, the first that the config has.
_OURS = {
    ("steps", "max_steps", "num_train_steps", "train_steps"): ("phases", "epochs"),
    ("num_train_epochs", "num_epochs", "epochs"): ("epochs", "phases"),
    ("batch_size", "train_batch_size", "per_device_train_batch_size"): ("batch", "phases"),
    ("eval_batch_size", "per_device_eval_batch_size"): ("eval_batch",),
    ("seq_length", "max_seq_length", "max_length", "block_size"): ("max_length", "phases"),
    ("gradient_accumulation_steps",): ("accumulation",),
    ("output_dir", "logging_dir"): ("run",),
    ("model_name_or_path", "model_name", "init_checkpoint", "checkpoint", "config_name"): ("init",),
    ("train_file",): ("train", "text"),
    ("validation_file",): ("dev",),
    ("data_dir", "dataset", "dataset_name", "input_file"): ("data",),
    ("task_name",): ("task",),
    ("warmup_ratio", "warmup_proportion"): ("warmup", "optimizer.warmup_share"),
    ("num_warmup_steps",): ("optimizer.warmup_steps",),
    ("lr_scheduler_type",): ("optimizer.schedule",),
    ("optim",): ("optimizer.name",),
    ("adam_beta1",): ("optimizer.b1",),
    ("adam_beta2",): ("optimizer.b2",),
    ("adam_epsilon",): ("optimizer.eps",),
    ("max_grad_norm",): ("optimizer.clip_norm",),
    ("label_smoothing_factor",): ("label_smoothing",),
    ("mlm_probability", "masked_lm_prob"): ("masking.probability",),
    ("max_predictions_per_seq",): ("masking.max_predictions",),
    ("save_steps", "save_checkpoints_steps"): ("save_every",),
    ("save_total_limit",): ("keep",),
    ("eval_steps",): ("eval_every",),
    ("max_eval_steps",): ("eval_batches",),
    ("logging_steps",): ("log_every",),
    ("bf16", "fp16"): ("model.dtype",),
    ("gradient_checkpointing",): ("model.remat",),
    ("num_layers", "n_layers", "layers"): ("model.num_hidden_layers",),
    ("hidden_dim", "d_model", "dim"): ("model.hidden_size",),
    ("num_heads", "n_heads", "heads"): ("model.num_attention_heads",),
    ("report_to",): ("track",),
}


def field_called(name: str, fields: Iterable[str]) -> str | None:
    """The one of a config's fields, dotted, that is called `name` elsewhere; None if none is known."""
    known = {*fields, "run"}
    return next((ours for names, both in _OURS.items() if name in names for ours in both if ours in known), None)
