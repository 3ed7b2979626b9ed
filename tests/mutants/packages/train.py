"""Mutants of the programs."""

from tests.mutants.mutant import Mutant

LOOP = "train/run/loop.py"
ROLLBACK = "train/run/rollback.py"
STOPPING = "train/run/ending/stopping.py"
DIRECTORY = "train/run/directory.py"
METER = "train/run/log/meter.py"
LINES = "train/run/log/metrics_file.py"
SAVING = "train/run/saving.py"
OUTLET = "train/run/log/outlet.py"
WATCHDOG = "train/run/ending/watchdog.py"
MONITOR = "train/run/ending/monitor.py"
GOODPUT = "train/run/goodput.py"
JOB = "train/pretraining/job.py"
RECIPE = "train/pretraining/recipe.py"
CONFIG = "train/run/config.py"
FINETUNING = "train/finetuning/job.py"
STARTING = "train/finetuning/start.py"
HOLDING_OUT = "train/preparation/held_out.py"
SHARD_PLAN = "train/preparation/shard_plan.py"
UNITS = "train/preparation/units.py"
RANGES = "bert_jax/data/text/ranges.py"
OF_KERNELS = "tests/train/planning/test_kernels.py"
OF_PLAN = "tests/train/planning/test_plan.py"
OF_PROGRAM = "tests/train/planning/test_program.py"
OF_RUNS = "tests/train/pretraining/test_pretrain.py"
OF_MONITOR = "tests/train/run/ending/test_monitor.py"
OF_NOT_FINITE = "tests/train/run/test_not_finite.py"
OF_SWEEPS = "tests/train/pretraining/sweep/test_together.py"
OF_TOGETHER = "tests/train/pretraining/sweep/test_together_faults.py"
OF_PAIRS = "tests/train/pretraining/scoring/test_minimal_pairs.py"
OF_RECIPE = "tests/train/pretraining/test_recipe.py"
OF_PACKING = "tests/train/pretraining/test_packing.py"
OF_SCALE = "tests/train/pretraining/test_scale.py"
OF_SIGNALS = "tests/train/run/ending/test_signals.py"
OF_STAGES = "tests/train/run/test_stages.py"
OF_METER = "tests/train/run/log/test_meter.py"
OF_LINES = "tests/train/run/log/test_metrics_file.py"
OF_SAVING = "tests/train/run/test_saving.py"
OF_OUTLET = "tests/train/run/log/test_outlet.py"
OF_EVALUATION = "tests/train/pretraining/scoring/test_held_out.py"
OF_TASKS = "tests/train/finetuning/test_tasks.py"
OF_FINETUNING = "tests/train/finetuning/test_finetune.py"
OF_STARTING = "tests/train/finetuning/test_start.py"
OF_DEDUPE = "tests/train/preparation/test_dedupe.py"
OF_INPUTS = "tests/train/preparation/test_inputs.py"
OF_PREPARING = "tests/train/preparation/test_prepare.py"
DATA_RULES = "train/diagnosis/data_rules.py"
METRIC_RULES = "train/diagnosis/metric_rules.py"
OF_DOCTOR = "tests/train/diagnosis/test_doctor.py"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        LOOP,
        "feed = stack.enter_context(closing(job.batches(self._step)))",
        "feed = stack.enter_context(closing(job.batches(0)))",
        "a run that goes on begins its data anew",
        (f"{OF_RUNS}::test_three_resumes_equal_never_having_stopped",),
    ),
    Mutant(
        SAVING,
        "if self._failed else regular",
        "if self._failed else False",
        "nothing is saved before the end",
        (f"{OF_SAVING}::test_a_failed_save_is_tried_again_before_the_next_regular_one_and_said_once_each",),
    ),
    Mutant(
        SAVING,
        "pause = self._pause * 2 ** min(self._failed - 1, 30)",
        "pause = self._pause",
        "a save that fails is tried again every minute",
        (f"{OF_SAVING}::test_a_failed_save_is_tried_again_before_the_next_regular_one_and_said_once_each",),
    ),
    Mutant(
        SAVING,
        "if self._failed >= most:",
        "if self._failed > most:",
        "a run whose saves fail goes on for one failure more",
        (f"{OF_SAVING}::test_after_the_last_failure_the_run_ends",),
    ),
    Mutant(
        OUTLET,
        'data = b"".join(waiting)',
        "data = waiting[-1]",
        "rows that a full disk did not take are lost",
        (f"{OF_OUTLET}::test_what_a_full_disk_did_not_take_is_written_later_in_order_and_whole",),
    ),
    Mutant(
        OUTLET,
        "self._next_try = now + max(pause, 20 * (now - began))",
        "self._next_try = now",
        "a log that fails slowly is tried with every record",
        (f"{OF_OUTLET}::test_a_place_that_fails_slowly_is_tried_a_twentieth_of_the_time",),
    ),
    Mutant(
        LOOP,
        "evaluates = self._step % config.eval_every == 0 or last",
        "evaluates = last",
        "nothing is evaluated before the end",
        (f"{OF_RUNS}::test_a_run_leaves_everything_that_was_promised",),
    ),
    Mutant(
        LOOP,
        "return self._job.why_stop(meter.newest, meter.step)",
        "return None",
        "a run whose numbers went bad goes on for ever",
        (f"{OF_RUNS}::test_numbers_that_go_bad_stop_the_run_and_are_never_saved",),
    ),
    Mutant(
        "train/pretraining/first_state.py",
        "check_finite(params, source.name)",
        "pass",
        "a run starts from parameters that are not finite",
        (
            "tests/train/pretraining/test_first_state.py::test_a_source_with_a_value_that_is_not_finite_is_refused_by_the_parameters_name",
        ),
    ),
    Mutant(
        JOB,
        "self._other_scores(exported_weights(state), step)",
        "self._other_scores(state.params, step)",
        "BLiMP scores weights that are not exported",
        (f"{OF_PAIRS}::test_scores_are_those_of_the_verb_and_a_killed_run_has_each_once",),
    ),
    Mutant(
        "train/pretraining/phases.py",
        "return bisect.bisect_right(range(total + 1), tokens(total) * step / total, key=tokens) - 1",
        "return step",
        "a branch begins in the decay of a trunk whose schedule counts tokens",
        ("tests/train/pretraining/sweep/test_together.py::test_where_a_decay_begins",),
    ),
    Mutant(
        LOOP,
        "        dropout = self._job.dropout_at(self._step)",
        "        dropout = None",
        "the dropout of a phase is that of the model",
        ("tests/train/pretraining/test_phases.py::test_a_phase_has_dropout_of_its_own",),
    ),
    Mutant(
        LOOP,
        "        program = (dropout, *(array.shape for array in jax.tree.leaves(batch)))",
        "        program = tuple(array.shape for array in jax.tree.leaves(batch))",
        "a step that compiles for another dropout counts as one that does not",
        ("tests/train/pretraining/test_phases.py::test_a_phase_has_dropout_of_its_own",),
    ),
    Mutant(
        "train/pretraining/steps.py",
        "            with_dropout(self.model, phase.dropout),",
        "            self.model,",
        "a plan's step of a phase has the model's dropout",
        ("tests/train/pretraining/test_phases.py::test_the_step_that_is_planned_for_a_phase_has_its_dropout",),
    ),
    Mutant(
        "train/pretraining/sweep/together.py",
        "def _say_record(self, line: str) -> None:",
        "def _show(self, line: str) -> None:",
        "the console shows the metrics of every member of a sweep",
        (f"{OF_SWEEPS}::test_the_console_shows_what_a_member_says_but_not_its_metrics",),
    ),
    Mutant(
        "train/pretraining/sweep/together.py",
        "return to_host(state.skipped_in_a_row) > 0",
        "return to_host(state.skipped_in_a_row) >= self.config.max_skipped_in_a_row",
        "a member that diverged so late that it was not stopped is exported",
        (f"{OF_TOGETHER}::test_a_member_that_diverges_is_shown_and_spoils_nothing",),
    ),
    Mutant(
        LOOP,
        "if skipped := skipped_in_a_row(self._state.skipped_in_a_row):",
        "if skipped := 0:",
        "a state is saved in the middle of a streak of skipped steps",
        (f"{OF_NOT_FINITE}::test_a_save_that_is_due_after_a_skipped_step_waits_for_a_good_one",),
    ),
    Mutant(
        LOOP,
        "if self._unsaved and self._code == EXIT_DONE:",
        "if False:",
        "a run whose last steps were skipped counts as done",
        (f"{OF_NOT_FINITE}::test_a_run_that_ends_on_skipped_steps_is_not_done",),
    ),
    Mutant(
        LOOP,
        "extra=not (due or over)",
        "extra=False",
        "a rollback goes back to the checkpoint of a stop",
        (f"{OF_NOT_FINITE}::test_a_rollback_does_not_go_back_to_the_step_of_a_stop",),
    ),
    Mutant(
        ROLLBACK,
        "checkpoints.delete_after(trained - 1)",
        "checkpoints.delete_after(trained)",
        "a checkpoint stays whose parameters have no finite loss",
        (f"{OF_NOT_FINITE}::test_a_streak_leaves_no_checkpoint_of_the_parameters_that_it_could_not_train",),
    ),
    Mutant(
        ROLLBACK,
        "step=jnp.full_like(good.state.step, step)",
        "step=good.state.step",
        "a run that goes back takes the same batches again",
        (f"{OF_NOT_FINITE}::test_a_rollback_passes_over_the_batches_since_the_last_good_checkpoint",),
    ),
    Mutant(
        STOPPING,
        "return EXIT_PREEMPTED, f",
        "return EXIT_INTERRUPTED, f",
        "SIGTERM ends with the code of Ctrl-C",
        (f"{OF_SIGNALS}::test_a_signal_ends_a_program_that_has_nothing_to_save_at_once",),
    ),
    Mutant(
        STOPPING,
        "if self._nothing_to_save():",
        "if False:",
        "Ctrl-C waits for the end of a compilation, though there is nothing to save",
        (f"{OF_SIGNALS}::test_a_signal_ends_a_program_that_has_nothing_to_save_at_once",),
    ),
    Mutant(
        STOPPING,
        "self._signals.limit(self._grace, lambda: self._end_late(code, line))",
        "pass",
        "a run that hangs ignores SIGTERM",
        (f"{OF_SIGNALS}::test_what_cannot_be_saved_within_the_grace_is_given_up",),
    ),
    Mutant(
        "train/run/ending/signals.py",
        "self._limit.cancel()",
        "pass",
        "a signal that was handled ends the process later",
        (f"{OF_SIGNALS}::test_a_signal_noticed_while_the_context_is_left_ends_nothing_later",),
    ),
    Mutant(
        WATCHDOG,
        "if self._passed > last:",
        "if False:",
        "a run that hangs never ends",
        (f"{OF_STAGES}::test_past_a_budget_the_stacks_are_told_once_and_past_twice_the_run_ends",),
    ),
    Mutant(
        WATCHDOG,
        "min(now - self._last_look, 10 * self._pause), now",
        "now - self._last_look, now",
        "a machine that slept ends its run",
        (f"{OF_STAGES}::test_the_sleep_of_the_whole_machine_is_no_time_of_the_stage",),
    ),
    Mutant(
        MONITOR,
        "if silent > limit:",
        "if False:",
        "a run of which no thread runs never ends",
        (f"{OF_MONITOR}::test_a_process_of_which_no_thread_runs_is_killed_with_a_line_and_its_stacks",),
    ),
    Mutant(
        MONITOR,
        "elif not _is_stopped(watched):",
        "else:",
        "a run that is stopped for a while is killed",
        (f"{OF_MONITOR}::test_a_process_that_is_stopped_for_longer_is_left_alone",),
    ),
    Mutant(
        GOODPUT,
        "found = read_summed(path)",
        "found = read_summed(path) if False else __import__('json').loads(path.read_text())",
        "a changed record of a run's time is believed",
        (f"{OF_STAGES}::test_a_changed_byte_in_the_record_is_told_and_it_is_begun_anew",),
    ),
    Mutant(
        GOODPUT,
        'self._seconds["lost"] + sum(again.values())',
        'self._seconds["lost"]',
        "steps that a run does again are not in its wall time",
        (f"{OF_STAGES}::test_what_a_killed_run_did_after_its_checkpoint_is_lost_when_it_is_done_again",),
    ),
    Mutant(
        STOPPING,
        "return _end_with(EXIT_USER_ERROR, error_line(error))",
        "return _end_with(EXIT_DONE, error_line(error))",
        "a user's mistake ends with 0",
        (f"{OF_PREPARING}::test_a_mistake_is_one_line_and_exit_code_2",),
    ),
    Mutant(
        STOPPING,
        "return EXIT_INTERRUPTED, ",
        "return EXIT_DONE, ",
        "Ctrl-C ends with 0",
        (f"{OF_PREPARING}::test_ctrl_c_ends_with_130_and_the_command_goes_on",),
    ),
    Mutant(
        RECIPE,
        "if step < start + phase.steps:",
        "if step <= start + phase.steps:",
        "a phase lasts a step longer",
        (f"{OF_RECIPE}::test_the_schedule_spans_all_phases",),
    ),
    Mutant(
        RECIPE,
        "return sum(phase.steps for phase in self.phases)",
        "return self.phases[-1].steps",
        "a run is as long as its last phase",
        (f"{OF_RECIPE}::test_the_schedule_spans_all_phases",),
    ),
    Mutant(
        RECIPE,
        "dataclasses.replace(self.optimizer, total_steps=total)",
        "self.optimizer",
        "the schedule does not end where the run does",
        (f"{OF_RECIPE}::test_the_schedule_spans_all_phases",),
    ),
    Mutant(
        CONFIG,
        'if text.lower() in ("true", "1", "yes"):',
        'if text.lower() in ("true", "1", "yes", "false"):',
        "false said on the command line is true",
        (f"{OF_RECIPE}::test_an_override_reads_the_value_as_the_fields_own_type",),
    ),
    Mutant(
        CONFIG,
        "if not math.isfinite(value) or (hint is int and value != int(value)):",
        "if not math.isfinite(value):",
        "a fraction for a whole number is cut",
        (f"{OF_RECIPE}::test_a_wrong_override_says_what_would_be_right",),
    ),
    Mutant(
        CONFIG,
        "if not math.isfinite(value) or (hint is int and value != int(value)):",
        "if hint is int and value != int(value):",
        "an infinite number is taken",
        (f"{OF_RECIPE}::test_a_number_that_is_not_finite_is_refused",),
    ),
    Mutant(
        "train/pretraining/source.py",
        "replace(config, masking=masking, phases=tuple(map(_unmasked, config.phases)), seed=0)",
        "replace(config, phases=tuple(map(_unmasked, config.phases)), seed=0)",
        "held-out text is masked as the training text",
        (f"{OF_RUNS}::test_held_out_masks_are_those_of_the_data_whatever_the_training_masks",),
    ),
    Mutant(
        "train/pretraining/source.py",
        "replace(config, masking=masking, phases=tuple(map(_unmasked, config.phases)), seed=0)",
        "replace(config, masking=masking, phases=tuple(map(_unmasked, config.phases)))",
        "held-out masks follow the seed of the run",
        (f"{OF_RUNS}::test_held_out_masks_are_those_of_the_data_whatever_the_training_masks",),
    ),
    Mutant(
        "train/pretraining/hopeless.py",
        "loss > unigram - ON_THE_LINE",
        "loss > unigram + ON_THE_LINE",
        "a run on the unigram line is not given up",
        ("tests/train/pretraining/test_hopeless.py::test_what_is_hopeless",),
    ),
    Mutant(
        "train/pretraining/recipe.py",
        "and step < self.total_steps and self.tokens_before(step) >= after",
        "and step < self.total_steps",
        "a run is given up before it has had its tokens",
        (
            "tests/train/pretraining/test_hopeless.py::test_a_run_is_given_up_only_after_so_many_tokens_and_never_at_its_end",
        ),
    ),
    Mutant(
        "train/pretraining/scoring/held_out.py",
        "total[name] = total.get(name, 0.0) + float(value)",
        "total[name] = float(value)",
        "an evaluation is of its last batch",
        (f"{OF_EVALUATION}::test_baselines_are_those_of_scikit_learn",),
    ),
    Mutant(
        "bert_jax/model/start.py",
        "smoothed = counts.astype(np.float64) + 1",
        "smoothed = counts.astype(np.float64) + 1e-9",
        "a token that training lacks makes the baseline's loss nearly infinite",
        (f"{OF_EVALUATION}::test_baselines_are_those_of_scikit_learn",),
    ),
    Mutant(
        METER,
        'kept = [row for row in rows if row["finite"]] or rows',
        "kept = rows",
        "steps that were skipped count in the mean loss",
        (f"{OF_METER}::test_metrics_are_fetched_one_step_late_and_averaged_over_good_steps",),
    ),
    Mutant(
        METER,
        "self._since += took",
        "pass",
        "evaluations count in the speed",
        (f"{OF_METER}::test_speeds_leave_the_compilers_time_and_pauses_out",),
    ),
    Mutant(
        LINES,
        'if written is None or hashlib.sha256(content[:size]).hexdigest() != written["sha256"]:',
        "if written is None:",
        "rows of metrics that were damaged are kept without a word",
        (f"{OF_LINES}::test_damaged_metrics_are_named_and_what_was_there_stays",),
    ),
    Mutant(
        LINES,
        "    if not rows and content.strip():",
        "    if False:",
        "the metrics.jsonl of somebody else is emptied",
        (f"{OF_LINES}::test_the_metrics_of_somebody_else_are_not_emptied",),
    ),
    Mutant(
        DIRECTORY,
        "    if refused:",
        "    if False:",
        "a run goes on with another config",
        ("tests/train/run/test_rundir.py::test_another_config_is_refused_unless_the_fields_are_named",),
    ),
    Mutant(
        FINETUNING,
        "self._ranks_so_far()[-1] > max(before)",
        "self._ranks_so_far()[-1] < max(before)",
        "the worst model is exported",
        (f"{OF_FINETUNING}::test_a_table_becomes_a_model_with_its_labels_predictions_and_a_report",),
    ),
    Mutant(
        FINETUNING,
        "len(scores) - 1 - scores.index(max(scores)) >= patience",
        "len(scores) >= patience",
        "a run ends after so many evaluations, however good they are",
        (f"{OF_FINETUNING}::test_a_run_ends_when_it_gets_no_better_and_a_share_of_train_is_held_out",),
    ),
    Mutant(
        STARTING,
        "from_fresh = [path for path in wanted if is_allowed(path, (*randomised, *upper))]",
        "from_fresh = [path for path in wanted if is_allowed(path, (*randomised,))]",
        "upper layers that were to be drawn anew are the source's",
        (f"{OF_STARTING}::test_so_many_layers_at_the_top_are_drawn_anew_and_the_others_are_the_sources",),
    ),
    Mutant(
        STARTING,
        "known = head in _WITHOUT_CLASSES or source.config.labels == config.model.labels",
        "known = True",
        "a classifier of other labels is gone on with",
        (f"{OF_STARTING}::test_a_head_is_gone_on_with_where_the_labels_are_the_same",),
    ),
    Mutant(
        HOLDING_OUT,
        "return _place(text) < share * 2**64",
        "return _place(text) < share * 2**63",
        "half as many documents are held out",
        (f"{OF_PREPARING}::test_a_document_stays_on_its_side_whatever_else_is_in_the_corpus",),
    ),
    Mutant(
        HOLDING_OUT,
        "min(0.1, _ENOUGH_CHARS / chars)",
        "min(0.1, 0.1 * _ENOUGH_CHARS / chars)",
        "the ends of few documents are too short to evaluate on",
        ("tests/train/preparation/test_held_out.py::test_the_end_of_each_of_few_documents_is_held_out_at_a_sentence",),
    ),
    Mutant(
        HOLDING_OUT,
        "math.ceil(len(found) / 10)",
        "math.ceil(len(found) / 100)",
        "a small text holds out too little to evaluate on",
        (f"{OF_PREPARING}::test_by_default_a_small_corpus_holds_out_enough_to_evaluate_on",),
    ),
    Mutant(
        "train/pretraining/recipe.py",
        "return sum(self.rows_left_out(length)) + rows_used",
        "return rows_used",
        "a run from another sees the same rows again",
        ("tests/train/pretraining/test_pretrain.py::test_a_run_from_another_continues_in_its_data",),
    ),
    Mutant(
        "train/pretraining/first_rows.py",
        'counts += [(length, rows) for length, *rows in facts["config"].get("first_rows", ())]',
        "counts += []",
        "the third run in the same data sees the first one's rows again",
        (
            "tests/train/pretraining/test_mixture.py::test_a_run_continues_in_each_part_after_the_rows_that_another_run_used",
        ),
    ),
    Mutant(
        "train/pretraining/fitted_model.py",
        'facts.get("data_digest", data.digest) == data.digest',
        "True",
        "a run goes on with other data under the same path",
        (
            "tests/train/pretraining/test_mixture.py::test_a_resumed_run_compares_its_data_with_what_its_checkpoint_records",
        ),
    ),
    Mutant(
        RECIPE,
        "if rows // number <= most)",
        "if rows // number < most)",
        "a device computes half of what it may",
        (f"{OF_SCALE}::test_parts_said_outright_or_not_at_all_are_not_derived",),
    ),
    Mutant(
        RECIPE,
        "max(1, self.tokens_per_device // length)",
        "max(1, self.tokens_per_device // 128)",
        "long rows take more memory than the recipe allows",
        (f"{OF_SCALE}::test_a_published_recipe_keeps_its_batch_on_every_number_of_devices",),
    ),
    Mutant(
        "train/pretraining/scoring/held_out.py",
        "eval_batches=whole * parts",
        "eval_batches=config.eval_batches",
        "the number of devices decides what is evaluated",
        (f"{OF_SCALE}::test_what_is_evaluated_does_not_depend_on_the_parts",),
    ),
    Mutant(
        "train/pretraining/recipe.py",
        "rows_used(self.phases_in_rows, step)",
        "rows_used(self.phases, step)",
        "a phase passes over packed rows that no phase used",
        (f"{OF_PACKING}::test_phases_of_one_length_continue_the_rows",),
    ),
    Mutant(
        "train/pretraining/packing.py",
        'packed = dict(saved.get("packed", ()))',
        "packed = {}",
        "a resumed run no longer packs, and takes other examples than it would have",
        (f"{OF_PACKING}::test_a_resumed_run_stays_as_it_began",),
    ),
    Mutant(
        "train/run/directory.py",
        '"accumulation", "tokens_per_device", "model.attention"',
        '"model.attention"',
        "a run cannot be resumed with other parts",
        (f"{OF_SCALE}::test_a_run_may_go_on_with_other_parts",),
    ),
    Mutant(
        "bert_jax/data/pretraining/batches.py",
        "keys_B = derive(self._seed, step, rows_B)",
        "keys_B = derive(self._seed, step, np.arange(len(rows_B)))",
        "a process makes other random rows than the batch has",
        ("tests/training/test_mesh_batches.py::test_random_batches_are_a_function_of_seed_step_and_row",),
    ),
    Mutant(
        SHARD_PLAN,
        "if self._with_words < 2:",
        "if not self._next:",
        "the last shard may have one document, with no other to draw a sentence from",
        (f"{OF_PREPARING}::test_one_shard_of_one_document_never_comes_about",),
    ),
    Mutant(
        "train/preparation/removal.py",
        "if len(data) < LEAST_LINE_BYTES:",
        "if not data:",
        "short lines that repeat are removed, as people's answers in a dialogue",
        (f"{OF_DEDUPE}::test_a_long_line_is_kept_where_it_comes_first_and_short_lines_stay",),
    ),
    Mutant(
        "bert_jax/data/text/near_duplicates.py",
        "(signatures == one).mean(axis=1) >= SIMILARITY",
        "(signatures == one).mean(axis=1) >= 0.5",
        "documents that share half of their words are removed",
        ("tests/data/text/test_near_duplicates.py::test_what_is_removed_is_what_comparing_all_pairs_removes",),
    ),
    Mutant(
        HOLDING_OUT,
        '"held-out" if is_held_out(original, options.held_out)',
        '"held-out" if is_held_out(text, options.held_out)',
        "a document that loses lines changes its side",
        (f"{OF_DEDUPE}::test_a_document_whose_lines_go_stays_on_its_side",),
    ),
    Mutant(
        UNITS,
        'if (stat.st_size, stat.st_mtime_ns) != (known["bytes"], known["mtime_ns"]):',
        'if stat.st_size != known["bytes"]:',
        "a file that was changed while preparing is taken for the one that was read",
        (f"{OF_INPUTS}::test_a_file_with_a_new_time_is_read_again_and_one_with_a_new_text_refused",),
    ),
    Mutant(
        "train/preparation/directory.py",
        'if 0 < more <= record.get("failed", 0) and',
        "if 0 < more and",
        "unfinished work goes on with files that were added to the text",
        (f"{OF_INPUTS}::test_a_broken_file_may_be_left_out_but_no_other",),
    ),
    Mutant(
        RANGES,
        "if line.strip() and starts(line, blank):",
        "if line.strip():",
        "a range of a text starts in the middle of a document",
        ("tests/data/text/test_ranges.py::test_the_ranges_of_a_text_have_its_documents_in_its_order",),
    ),
    Mutant(
        DATA_RULES,
        "if count > 1 and not large and not cut:",
        "if count > 1 and not cut:",
        "the doctor passes over a document that is most of the text",
        (f"{OF_DOCTOR}::test_one_document_among_few_is_named",),
    ),
    Mutant(
        DATA_RULES,
        "if not cased and capitals > CAPITALS:",
        "if cased and capitals > CAPITALS:",
        "the doctor mistakes a cased vocabulary for an uncased one",
        (f"{OF_DOCTOR}::test_no_alarm_on_healthy_data",),
    ),
    Mutant(
        DATA_RULES,
        "if share >= MASKED and hidden >= MASK_TOKENS:",
        "if share >= MASKED:",
        "the doctor passes over masks that show the token",
        (f"{OF_DOCTOR}::test_masks_that_hide_nothing_are_named",),
    ),
    Mutant(
        METRIC_RULES,
        "if now.loss - best.loss > RISE:",
        "if now.loss - best.loss > 10 * RISE:",
        "the doctor passes over a loss that rises",
        (f"{OF_DOCTOR}::test_a_wrong_learning_rate_is_named",),
    ),
    Mutant(
        METRIC_RULES,
        "and best.loss > unigram - BELOW_UNIGRAM",
        "and best.loss > 0",
        "the doctor calls any high rate too high, even if the model learns",
        (f"{OF_DOCTOR}::test_no_alarm_on_healthy_runs",),
    ),
    Mutant(
        METRIC_RULES,
        "if now.step < run.warm_up + STEPS_AFTER_WARM_UP or left < ABOVE_UNIGRAM:",
        "if left < ABOVE_UNIGRAM:",
        "the doctor calls the rate too low during the warm-up",
        (f"{OF_DOCTOR}::test_no_alarm_on_healthy_runs",),
    ),
    Mutant(
        METRIC_RULES,
        'last["step"] < steps or loss < unigram - BELOW_UNIGRAM',
        "loss < unigram - BELOW_UNIGRAM",
        "the doctor calls a run too short while it goes on",
        (f"{OF_DOCTOR}::test_a_run_that_ended_before_it_learnt_is_named",),
    ),
    Mutant(
        "train/doctor.py",
        "return EXIT_FOUND if found else EXIT_DONE",
        "return EXIT_DONE",
        "the doctor's exit code does not tell that it found something",
        (f"{OF_DOCTOR}::test_a_report_for_people_says_what_to_do",),
    ),
    Mutant(
        METER,
        "seconds, cpu_seconds = self._before.seconds + wall, self._before.cpu_seconds + processor",
        "seconds, cpu_seconds = wall, processor",
        "the seconds of a resumed run begin again",
        (f"{OF_METER}::test_what_a_run_has_used_goes_on_where_its_checkpoint_was",),
    ),
    Mutant(
        "train/finetuning/tasks/classify.py",
        "most = np.bincount(labels[labels >= 0], minlength=len(self.labels)).argmax()",
        "most = np.bincount(labels[labels >= 0], minlength=len(self.labels)).argmin()",
        "the baseline is the rarest label",
        (f"{OF_FINETUNING}::test_every_score_stands_beside_that_of_the_majority_class",),
    ),
    Mutant(
        FINETUNING,
        "-math.inf if loss is None else -loss",
        "0.0",
        "of equal scores the first model is exported, whose loss is higher",
        (f"{OF_FINETUNING}::test_of_equal_scores_the_lower_loss_is_better_and_the_run_goes_on",),
    ),
    Mutant(
        "bert_jax/evaluation/predictions.py",
        "flags_of(gold, found, {*classes, *itertools.chain(*chances)})",
        "flags_of(gold, found)",
        "macro_f1 is the mean over the labels that occur",
        (f"{OF_TASKS}::test_macro_f1_of_several_labels_is_scikit_learns_where_a_label_occurs_in_neither",),
    ),
    Mutant(
        "train/finetuning/tasks/classify.py",
        'one["probability"] = row[said]',
        'one["probability"] = row[0]',
        "the probability is that of another label",
        (f"{OF_FINETUNING}::test_predictions_have_text_gold_label_and_probability",),
    ),
    Mutant(
        "train/finetuning/sweep.py",
        "baseline is not None and best <= baseline",
        "baseline is not None and best < baseline",
        "a run that is only as good as the baseline has not failed",
        ("tests/train/finetuning/test_sweep.py::test_picture_and_table_of_a_sweep_say_why_a_run_failed",),
    ),
    Mutant(
        "train/compare.py",
        "return (chosen or self.evaluations or [{}])[-1]",
        "return (self.evaluations or [{}])[-1]",
        "a comparison has the last evaluation, not the one that chose the model",
        ("tests/train/test_compare.py::test_of_fine_tuning_runs_it_has_the_evaluation_that_chose_the_model",),
    ),
    Mutant(
        "train/run/log/outlet.py",
        "except Exception as error:",
        "except UserError as error:",
        "a tracker that fails ends the training",
        ("tests/train/run/log/test_track.py::test_a_service_that_fails_is_reported_once_and_gets_the_records_later",),
    ),
    Mutant(
        "train/planning/estimate.py",
        "seconds -= hidden",
        "pass",
        "a plan waits for what the compiler put beside products",
        ("tests/train/planning/test_plan.py::test_exchanges_take_their_bytes_over_the_links",),
    ),
    Mutant(
        "train/planning/estimate.py",
        "beside[name] = beside.get(name, 0.0) - hidden",
        "pass",
        "a product of a plan hides more seconds of exchanges than it takes",
        ("tests/train/planning/test_plan.py::test_exchanges_take_their_bytes_over_the_links",),
    ),
    Mutant(
        "train/planning/estimate.py",
        "scheduled = max(operation.scheduled, memory)",
        "scheduled = operation.scheduled",
        "an elementwise operation of a plan is faster than its memory traffic",
        ("tests/train/planning/test_plan.py::test_the_range_follows_its_rule",),
    ),
    Mutant(
        "train/planning/program.py",
        "return (line.opcode, *map(self._text_of, called), *operands)",
        "return (line.opcode, *operands)",
        "fusions that compute different things share a schedule",
        (f"{OF_KERNELS}::test_equal_fusions_share_a_schedule_and_others_do_not",),
    ),
    Mutant(
        "train/planning/estimate.py",
        "size * share * (2 if",
        "size * share * (1 if",
        "a plan's sums of gradients take half of their time",
        ("tests/train/planning/test_plan.py::test_exchanges_take_their_bytes_over_the_links",),
    ),
    Mutant(
        "train/planning/estimate.py",
        "inside = one.group // one.slices",
        "inside = one.group",
        "a plan's exchanges between slices take the time of the links within one",
        (f"{OF_PLAN}::test_an_exchange_between_slices_goes_over_their_network_whatever_its_group",),
    ),
    Mutant(
        "train/planning/program.py",
        "times * self._trips(line.text), True",
        "times, True",
        "what a loop exchanges counts once",
        (f"{OF_PROGRAM}::test_a_collective_has_its_kind_bytes_and_place",),
    ),
    Mutant(
        "train/planning/program.py",
        r'if of_memory and layout and re.search(r"S\([123]\)", layout):',
        "if not layout:",
        "what lies in a TPU's VMEM is read from its memory in the plan",
        (f"{OF_PROGRAM}::test_what_lies_in_a_tpus_vmem_is_no_traffic_of_its_memory",),
    ),
    Mutant(
        "train/planning/estimate.py",
        "2 * devices * operation.times",
        "2 * operation.times",
        "virtual devices of a CPU share no memory in a plan",
        ("tests/train/planning/test_plan.py::test_the_range_of_a_cpu_follows_its_rule",),
    ),
    Mutant(
        "train/planning/planner.py",
        'per_second(facts["examples"])',
        'per_second(facts["rows"])',
        "a plan counts rows as sequences where examples share them",
        (f"{OF_PACKING}::test_a_plan_counts_the_examples_that_share_rows",),
    ),
    Mutant(
        "train/planning/planner.py",
        "with_packing(config, data, devices=topology.devices)",
        "with_packing(config, data)",
        "a plan packs for the devices of this machine, not for those of its topology",
        (f"{OF_PACKING}::test_a_plan_packs_where_the_rows_split_over_the_devices_of_its_topology",),
    ),
    Mutant(
        "train/planning/kernels.py",
        "times[inside] *= trips or 1",
        "times[inside] = trips or 1",
        "a loop in a loop of a kernel counts too little in a plan",
        (f"{OF_KERNELS}::test_a_schedule_takes_a_cycle_for_each_bundle_and_turn_of_its_loops",),
    ),
    Mutant(
        "train/planning/estimate.py",
        'memory if operation.kind == "loop" else max',
        'memory if operation.kind != "product" else max',
        "a plan's kernels take no time at the fast end",
        (f"{OF_KERNELS}::test_a_kernel_takes_its_cycles_and_up_to_half_as_many_of_waiting_or_its_memory_traffic",),
    ),
    Mutant(
        "train/planning/products.py",
        'return params["length"]',
        "return 1",
        "products in a loop count once",
        (f"{OF_PROGRAM}::test_products_are_those_of_the_closed_formula_whatever_the_loops_and_devices",),
    ),
)
