"""Mutants of training: the step, the optimizer, the schedules, the mesh, the checkpoints."""

from tests.mutants.mutant import Mutant

STEP = "bert_jax/training/step.py"
OPTIMIZER = "bert_jax/training/optimizer.py"
MOMENTS = "bert_jax/training/moments.py"
WEIGHT_DECAY = "bert_jax/training/weight_decay.py"
LAYER_RATES = "bert_jax/training/layer_rates.py"
SCHEDULES = "bert_jax/training/schedules.py"
SHARDING = "bert_jax/training/sharding.py"
MESH = "bert_jax/training/mesh.py"
OWN_ROWS = "bert_jax/training/own_rows.py"
DIRECTORY = "bert_jax/training/checkpoint/step_directory.py"
MANIFEST = "bert_jax/training/checkpoint/manifest.py"
OF_OPTIMIZER = "tests/training/test_optimizer.py"
OF_STEP = "tests/training/test_step.py"
OF_SHARDING = "tests/training/test_sharding.py"
OF_MESH = "tests/training/test_mesh.py"
OF_CHECKPOINTS = "tests/training/checkpoint/test_checkpoint.py"
OF_FAULTS = "tests/training/checkpoint/test_checkpoint_faults.py"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        SCHEDULES,
        "jnp.where(t < warmup_steps, peak * ramp, decayed)",
        "jnp.where(t <= warmup_steps, peak * ramp, decayed)",
        "warm-up lasts a step longer",
        (f"{OF_OPTIMIZER}::test_googles_decay_line_starts_at_step_zero",),
    ),
    Mutant(
        SCHEDULES,
        "if power is None else remaining**power",
        "if power is None else remaining",
        "the power of the polynomial is not read",
        (f"{OF_OPTIMIZER}::test_polynomial_counts_from_one_as_nvidias_scheduler",),
    ),
    Mutant(
        SCHEDULES,
        'warmup_steps if decay_from == "warmup" else 0',
        "0",
        "the decay always begins at step 0",
        (f"{OF_OPTIMIZER}::test_decay_from_the_end_of_warmup_is_continuous",),
    ),
    Mutant(
        SCHEDULES,
        "max(decay_steps, 1) if decay",
        "max(total_steps, 1) if decay",
        "a stable rate does not reach its end",
        (f"{OF_OPTIMIZER}::test_a_stable_rate_decays_at_the_end_by_its_closed_form",),
    ),
    Mutant(
        "bert_jax/training/optimizer_config.py",
        "round(self.warmup_share * self.total_steps) if self.warmup_steps is None",
        "10_000 if self.warmup_steps is None",
        "the default warm-up is longer than a short run",
        ("tests/train/pretraining/test_recipe.py::test_the_default_warm_up_is_a_share_of_any_run",),
    ),
    Mutant(
        SCHEDULES,
        "t = jnp.asarray(step, jnp.float32) + first_count",
        "t = jnp.asarray(step, jnp.float32) + 1",
        "the first update has a rate where it should have none",
        (f"{OF_OPTIMIZER}::test_first_update_has_rate_zero_and_last_update_one_step_above_the_end",),
    ),
    Mutant(
        WEIGHT_DECAY,
        'not components[-1].endswith("bias") and not any(',
        "not any(",
        "biases are decayed",
        (f"{OF_OPTIMIZER}::test_embeddings_and_kernels_are_decayed_and_biases_and_layer_norms_are_not",),
    ),
    Mutant(
        "bert_jax/training/muon.py",
        "0.2 * math.sqrt(max(g.shape))",
        "0.2 * math.sqrt(min(g.shape))",
        "Muon's updates are smaller than AdamW's",
        (f"{OF_OPTIMIZER}::test_muon_is_optaxs_own_for_matrices_and_adamw_for_the_rest",),
    ),
    Mutant(
        OPTIMIZER,
        "jax.tree.map(operator.not_, hidden_matrices(params))",
        "jax.tree.map(lambda _: True, hidden_matrices(params))",
        "AdamW keeps moments of Muon's matrices",
        (f"{OF_OPTIMIZER}::test_muon_keeps_no_second_moment_of_matrices",),
    ),
    Mutant(
        "bert_jax/training/average.py",
        "largest = jnp.maximum(state.largest_rate, rate(extra))",
        "largest = rate(extra)",
        "Schedule-Free weighs by the rate of the step alone",
        ("tests/training/test_average.py::test_schedule_free_is_optaxs_own_step_by_step",),
    ),
    Mutant(
        MOMENTS,
        "halvings = tokens / half_life",
        "halvings = tokens[:1] / half_life + 0 * tokens",
        "the half-life follows the batches of the first phase alone",
        (f"{OF_OPTIMIZER}::test_a_second_moment_halves_after_as_many_tokens_whatever_the_batch",),
    ),
    Mutant(
        WEIGHT_DECAY,
        'any("LayerNorm" in c or "layer_norm" in c for c in components)',
        'any("layer_norm" in c for c in components)',
        "LayerNorms are decayed",
        (f"{OF_OPTIMIZER}::test_embeddings_and_kernels_are_decayed_and_biases_and_layer_norms_are_not",),
    ),
    Mutant(
        MOMENTS,
        "_one_minus_power(b1, count) if bias_correction and b1 is not None else 1.0",
        "_one_minus_power(b1, count)",
        "the first moment is corrected though BERT's AdamW does not",
        (f"{OF_OPTIMIZER}::test_adamw_of_google",),
    ),
    Mutant(
        MOMENTS,
        "c2 = corrected if bias_correction else 1.0",
        "c2 = 1.0",
        "the second moment is never corrected",
        (f"{OF_OPTIMIZER}::test_adamw_of_torch",),
    ),
    Mutant(
        OPTIMIZER,
        "optax.clip_by_global_norm(config.clip_norm) if config.clip_norm",
        "optax.clip(config.clip_norm) if config.clip_norm",
        "each number of a gradient is clipped, and not its norm",
        (f"{OF_OPTIMIZER}::test_every_variant_follows_its_definition",),
    ),
    Mutant(
        OPTIMIZER,
        'if config.trust_ratio_for == "decayed":',
        "if False:",
        "LAMB scales biases and LayerNorms too",
        (f"{OF_OPTIMIZER}::test_every_variant_follows_its_definition",),
    ),
    Mutant(
        LAYER_RATES,
        "return decay ** (count + 1 - depth)",
        "return decay ** (count - depth)",
        "the last layer learns at the full rate of the head",
        ("tests/training/test_layer_rates.py::test_rates_fall_towards_the_input",),
    ),
    Mutant(
        LAYER_RATES,
        "if depth <= frozen:",
        "if depth < frozen:",
        "one layer fewer is frozen",
        ("tests/training/test_layer_rates.py::test_what_is_frozen_is_the_bottom",),
    ),
    Mutant(
        LAYER_RATES,
        "_times(lambda path: float(rate(path) > 0), updates)",
        "updates",
        "what is frozen has a part in the clipped norm",
        ("tests/training/test_layer_rates.py::test_clipping_counts_what_learns",),
    ),
    Mutant(
        STEP,
        "finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)",
        "finite = jnp.isfinite(loss)",
        "a gradient that is not finite is applied",
        (f"{OF_STEP}::test_a_finite_loss_with_a_bad_gradient_is_skipped",),
    ),
    Mutant(
        STEP,
        "skipped_in_a_row=jnp.where(finite, 0, state.skipped_in_a_row + 1)",
        "skipped_in_a_row=state.skipped_in_a_row + ~finite",
        "steps skipped long ago count as skipped in a row",
        (f"{OF_STEP}::test_bad_batches_change_nothing_but_the_counters",),
    ),
    Mutant(
        STEP,
        "dropout_key = jax.random.fold_in(key, state.step)",
        "dropout_key = key",
        "each step drops the same",
        (f"{OF_STEP}::test_dropout_changes_with_the_step_and_the_key",),
    ),
    Mutant(
        STEP,
        "        with numbered_rows(rows):",
        "        with numbered_rows(rows if rows is None else rows * 0):",
        "each micro-batch drops the same",
        (f"{OF_STEP}::test_micro_batches_draw_different_dropout",),
    ),
    Mutant(
        STEP,
        "jnp.moveaxis(x.reshape(count // parts, parts, *x.shape[1:]), 1, 0)",
        "jnp.stack([x[: count // parts]] * parts)",
        "accumulation takes the first part of the batch again and again",
        (f"{OF_STEP}::test_accumulation_equals_the_whole_batch",),
    ),
    Mutant(
        STEP,
        "state.params, objective, objective.denominators(batch), dropout_key, batch",
        "*(state.params, objective),"
        "objective.denominators({k: v[: len(v) // accumulation] for k, v in batch.items()}), dropout_key, batch",
        "each part divides by its own size, so that the gradient grows with the accumulation",
        (f"{OF_STEP}::test_accumulation_divides_by_the_whole_batchs_denominators",),
    ),
    Mutant(
        STEP,
        '"grad_norm": grad_norm,',
        '"grad_norm": optax.tree.norm(updates),',
        "the norm that is told is that of the update",
        (f"{OF_STEP}::test_gradient_norm_is_reported_before_clipping",),
    ),
    Mutant(
        OWN_ROWS,
        "return lax.psum(gradient, others) if others else gradient",
        "return gradient",
        "each device updates the parameters by its own gradient",
        (f"{OF_SHARDING}::test_gradients_are_those_of_one_device",),
    ),
    Mutant(
        OWN_ROWS,
        ")(params, objective, denominators, key, batch, rows)",
        ")(params, objective, denominators, key, batch, rows * 0)",
        "all devices drop the same, and all rows",
        (f"{OF_SHARDING}::test_loss_is_that_of_one_device",),
    ),
    Mutant(
        SHARDING,
        "    if mesh.shape[axis] == 1:",
        "    if False:",
        "parameters that are whole are gathered from one device, in every part of a batch",
        (f"{OF_SHARDING}::test_each_gradient_is_added_up_once_and_not_in_every_part",),
    ),
    Mutant(
        SHARDING,
        'Rule("(cross_)?attention/output/kernel", (P("tensor", PIECES),)),',
        'Rule("(cross_)?attention/output/kernel", (P(PIECES, "tensor"),)),',
        "attention's output is cut along the wrong axis over tensor",
        (f"{OF_SHARDING}::test_layout_of_a_layer_is_megatrons",),
    ),
    Mutant(
        SHARDING,
        'Rule("feed_forward/intermediate/bias", (P("tensor"),)),',
        'Rule("feed_forward/intermediate/bias", (P(),)),',
        "the bias of the feed-forward is whole on each device",
        (f"{OF_SHARDING}::test_layout_of_a_layer_is_megatrons",),
    ),
    Mutant(
        SHARDING,
        'Rule("embeddings/word_embeddings", (P("tensor", PIECES), P(None, PIECES))),',
        'Rule("embeddings/word_embeddings", (P(None, PIECES),)),',
        "the token table is never cut over tensor",
        (f"{OF_SHARDING}::test_a_vocabulary_that_does_not_divide_is_whole_over_tensor",),
    ),
    Mutant(
        MESH,
        "inside, between = (data // slices, *within), (slices, 1, 1, 1)",
        "inside, between = (data, within[0] // slices, *within[1:]), (1, slices, 1, 1)",
        "the parameters are gathered over the network between slices",
        (f"{OF_MESH}::test_only_data_goes_over_the_network_between_slices",),
    ),
    Mutant(
        MESH,
        "    if data % slices:",
        "    if False:",
        "a mesh that leaves its slice ends in an error of JAX",
        (f"{OF_MESH}::test_a_mesh_that_would_leave_its_slice_is_refused",),
    ),
    Mutant(
        SHARDING,
        '"mlm_head/bias": -math.inf}',
        '"mlm_head/bias": 0.0}',
        "words that only pad the vocabulary take part in the softmax",
        (f"{OF_SHARDING}::test_a_vocabulary_that_does_not_divide_is_padded_in_the_step_and_nowhere_else",),
    ),
    Mutant(
        DIRECTORY,
        "if len(good) >= keep and step < good[keep - 1] and step not in regular:",
        "if len(good) >= keep and step <= good[keep - 1]:",
        "one checkpoint fewer is kept",
        (f"{OF_CHECKPOINTS}::test_the_newest_steps_are_kept",),
    ),
    Mutant(
        DIRECTORY,
        "regular += [] if self._is_extra(step) else [step]",
        "regular += [step]",
        "the checkpoint of a stop replaces one that a rollback needs",
        (f"{OF_CHECKPOINTS}::test_extra_steps_take_no_place_of_others_and_can_be_passed_over",),
    ),
    Mutant(
        DIRECTORY,
        "problems = [] if self._is_as_verified(step) else self.problems(step)",
        "problems = []",
        "damaged checkpoints count among those that are kept",
        (f"{OF_CHECKPOINTS}::test_an_older_step_stays_while_a_newer_one_is_damaged",),
    ),
    Mutant(
        DIRECTORY,
        "found == self._verified.get(step)",
        "step in self._verified",
        "a kept step is not read again when a file of it has changed",
        (f"{OF_CHECKPOINTS}::test_a_run_reads_each_step_once_and_again_only_if_a_file_has_changed",),
    ),
    Mutant(
        "bert_jax/training/checkpoint/hashing.py",
        "raise OSError(f\"process {process}: {found['error']}\")",
        "continue",
        "a step is saved although a process could not read its files",
        (f"{OF_FAULTS}::test_two_processes_save_and_restore_one_state",),
    ),
    Mutant(
        DIRECTORY,
        "for candidate in reversed(steps) if step is None",
        "for candidate in steps if step is None",
        "the oldest checkpoint is restored",
        (f"{OF_FAULTS}::test_a_flip_in_any_kind_of_file_falls_back_loudly_to_the_step_before",),
    ),
    Mutant(
        MANIFEST,
        "elif found_sha256 != sha256:",
        "elif False:",
        "changed bytes of a checkpoint go unnoticed",
        (f"{OF_FAULTS}::test_a_flip_in_any_kind_of_file_falls_back_loudly_to_the_step_before",),
    ),
    Mutant(
        MANIFEST,
        "(directory / MANIFEST).unlink(missing_ok=True)",
        "pass",
        "a save that failed leaves a manifest, and the next try of its step ends the run",
        ("tests/train/run/test_saving.py::test_the_last_save_is_tried_again_after_a_folder_that_could_not_be_synced",),
    ),
    Mutant(
        MANIFEST,
        'if str(record["step"]) != directory.name:',
        "if False:",
        "a step copied under another number is taken for that step",
        (f"{OF_FAULTS}::test_a_step_copied_under_another_number_is_not_that_step",),
    ),
    Mutant(
        MANIFEST,
        'return problems + [f"{name}: found, but not part of the checkpoint" for name in unknown]',
        "return problems",
        "a file that was added to a checkpoint goes unnoticed",
        (f"{OF_FAULTS}::test_truncated_emptied_deleted_and_added_files_are_detected",),
    ),
    Mutant(
        SHARDING,
        'multiple = 128 * pieces if pieces > 1 and platform_of(mesh) == "tpu" else pieces',
        "multiple = pieces",
        "on a TPU the pieces of a vocabulary do not fill its registers",
        (f"{OF_SHARDING}::test_on_tpus_each_piece_of_a_vocabulary_fills_whole_registers",),
    ),
    Mutant(
        SHARDING,
        ' or platform_of(mesh) == "tpu" else fused_cross_entropy',
        " else fused_cross_entropy",
        "a TPU computes the loss in the form that is slower there",
        (f"{OF_SHARDING}::test_where_the_vocabulary_is_cut_and_on_tpus_the_loss_is_written_out",),
    ),
    Mutant(
        OWN_ROWS,
        "sums, gradients = f(*whole, *others)",
        "sums, gradients = f(*whole, *others[:-1], None)",
        "devices share their dropout masks",
        (f"{OF_SHARDING}::test_no_two_rows_share_a_dropout_mask_whichever_devices_have_them",),
    ),
    Mutant(
        SHARDING,
        "return (jax.lax.psum_scatter(gradient, axis, scatter_dimension=place, tiled=True),)",
        "return (jax.lax.psum_scatter(gradient.astype(dtype), axis, scatter_dimension=place, tiled=True).astype('f'),)",
        "fsdp adds up gradients in bfloat16",
        (f"{OF_SHARDING}::test_matrices_are_gathered_in_the_type_of_the_products_and_gradients_summed_in_float32",),
    ),
)
