"""What the arguments of transformers and the flags of google-research/bert call the fields of a config."""

from collections.abc import Iterable

# Names there -> ours; where two are given, the first that the config has.
_OURS = {
    ("steps", "max_steps", "num_train_steps", "train_steps", "max_train_steps"): ("phases", "epochs"),
    ("num_train_epochs", "num_epochs", "epochs"): ("epochs", "phases"),
    ("batch_size", "train_batch_size", "per_device_train_batch_size", "per_gpu_train_batch_size"): ("batch", "phases"),
    ("eval_batch_size", "per_device_eval_batch_size"): ("eval_batch",),
    ("seq_length", "max_seq_length", "max_length", "block_size"): ("max_length", "phases"),
    ("gradient_accumulation_steps",): ("accumulation",),
    ("output_dir", "logging_dir"): ("run",),
    ("model_name_or_path", "model_name", "init_checkpoint", "checkpoint", "config_name"): ("init",),
    ("train_file",): ("train", "text"),
    ("validation_file",): ("dev", "eval_data"),
    ("test_file",): ("test",),
    ("validation_split_percentage",): ("dev", "text_options.held_out"),
    ("text_column_name", "text_column", "text_column_names", "sentence1_key"): ("text_options.field", "text"),
    ("sentence2_key",): ("pair",),
    ("label_column_name", "label_column"): ("label",),
    ("problem_type", "is_regression", "do_regression"): ("kind",),
    ("data_dir", "dataset", "dataset_name", "input_file"): ("data",),
    ("task_name",): ("task",),
    ("warmup_ratio", "warmup_proportion"): ("warmup", "optimizer.warmup_share"),
    ("warmup_steps", "num_warmup_steps"): ("warmup", "optimizer.warmup_steps"),
    ("lr",): ("optimizer.learning_rate",),
    ("lr_scheduler_type",): ("optimizer.schedule",),
    ("optim",): ("optimizer.name",),
    ("adam_beta1",): ("optimizer.b1",),
    ("adam_beta2",): ("optimizer.b2",),
    ("adam_epsilon",): ("optimizer.eps",),
    ("max_grad_norm",): ("optimizer.clip_norm",),
    ("label_smoothing_factor",): ("label_smoothing",),
    ("pos_weight", "class_weight"): ("class_weights",),
    ("mlm_probability", "masked_lm_prob"): ("masking.probability",),
    ("max_predictions_per_seq",): ("masking.max_predictions",),
    ("whole_word_mask", "do_whole_word_mask", "wwm"): ("masking.whole_word",),
    ("save_steps", "save_checkpoints_steps", "save_strategy"): ("save_every",),
    ("save_total_limit",): ("keep",),
    ("eval_steps", "eval_strategy", "evaluation_strategy"): ("eval_every",),
    ("max_eval_steps",): ("eval_batches",),
    ("logging_steps", "logging_strategy"): ("log_every",),
    ("bf16", "fp16"): ("model.dtype",),
    ("gradient_checkpointing",): ("model.remat",),
    ("num_layers", "n_layers", "layers"): ("model.num_hidden_layers",),
    ("hidden_dim", "d_model", "dim"): ("model.hidden_size",),
    ("num_heads", "n_heads", "heads"): ("model.num_attention_heads",),
    ("report_to",): ("track",),
    ("dropout",): ("model.hidden_dropout_prob",),
    ("metric_for_best_model",): ("metric",),
    ("early_stopping_patience", "patience"): ("early_stop",),
    ("n_trials", "hp_space"): ("learning_rates",),
    ("data_seed",): ("seed",),
    ("pad_to_max_length",): ("pad",),
    ("max_query_length",): ("max_question_length",),
    ("version_2_with_negative",): ("null_answers",),
    ("null_score_diff_threshold",): ("null_threshold",),
    ("tokenizer_name", "vocab_file"): ("text_options.vocab",),
    ("preprocessing_num_workers",): ("text_options.workers",),
    ("line_by_line",): ("text_options.format",),
}

# Names there -> what does the same here without a field of that meaning, where the config has the field before it.
_OTHERWISE = {
    ("load_best_model_at_end",): ("metric", "export/ of a run has the best model"),
    ("greater_is_better",): ("metric", "of each metric= the highest score is the best"),
    ("group_by_length",): ("dev", "the rows of a batch are of similar length without it"),
    ("id2label", "label2id", "num_labels", "label_list"): ("label", "the labels are those in the files"),
    ("label_all_tokens",): ("label", "a word's tag is trained on its first sub-token"),
    ("tokenizer_name", "vocab_file"): ("dev", "the tokenizer is that of init="),
    ("doc_stride",): (
        "stride",
        "stride= is from the start of one window to that of the next, as in run_squad.py, and not their overlap",
    ),
    ("do_train", "do_eval", "do_predict"): ("test", "a run trains on train=, scores dev= and predicts test="),
    ("do_train", "do_eval"): ("export_at_end", "a run trains, and evaluates after each eval_every= steps"),
    ("load_best_model_at_end", "metric_for_best_model"): ("export_at_end", "export/ of a run has its newest model"),
    ("teacher", "teacher_model", "teacher_name_or_path"): (
        "dev",
        "docs/finetuning.md has a program that distils a fine-tuned model",
    ),
    ("max_train_samples", "max_eval_samples"): ("dev", "give a shorter file"),
    ("resume_from_checkpoint",): ("keep", "the same command with the same run= resumes"),
    ("overwrite_output_dir",): ("keep", "choose another run=, as no run is overwritten"),
    ("push_to_hub", "hub_model_id"): ("keep", "python -m bert_jax push RUN ORG/NAME publishes a run"),
    ("no_cuda", "use_cpu"): ("keep", "the environment variable JAX_PLATFORMS=cpu does that"),
}


def field_called(name: str, fields: Iterable[str]) -> str | None:
    """The one of a config's fields, dotted, that is called `name` elsewhere; None if none is known."""
    known = {*fields, "run"}
    return next((ours for names, both in _OURS.items() if name in names for ours in both if ours in known), None)


def otherwise(name: str, fields: Iterable[str]) -> str | None:
    """What is here in place of an argument called `name` elsewhere that no field answers; None if nothing is known."""
    known = set(fields)
    return next((told for names, (field, told) in _OTHERWISE.items() if name in names and field in known), None)
