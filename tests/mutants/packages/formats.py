"""Mutants of other people's files, in and out."""

from tests.mutants.mutant import Mutant

PARAMETERS = "bert_jax/formats/names/parameters.py"
FAMILIES = "bert_jax/formats/names/families.py"
SAFETENSORS = "bert_jax/formats/safetensors.py"
FLAX = "bert_jax/formats/flax.py"
TORCH = "bert_jax/formats/torch/bin.py"
TF1_NAMES = "bert_jax/formats/tensorflow/names.py"
READ = "bert_jax/formats/read.py"
STORED = "bert_jax/formats/stored.py"
WRITE = "bert_jax/formats/write.py"
HUB = "bert_jax/formats/hub.py"
HUB_FILES = "bert_jax/formats/hub_files.py"
TRAINING_RECORD = "bert_jax/formats/training_record.py"
OF_PUSH = "tests/formats/test_push.py"
OF_NAMES = "tests/formats/test_names.py"
OF_READ = "tests/formats/test_read.py"
OF_WRITE = "tests/formats/test_write.py"
OF_SAFETENSORS = "tests/formats/test_safetensors.py"
OF_TORCH = "tests/formats/torch/test_torch_bin.py"
ONNX = "bert_jax/formats/onnx/"
OF_ONNX = "tests/formats/onnx/test_onnx.py"
OF_ONNX_PARITY = "tests/parity/test_onnx_transformers.py::test_onnxruntime_computes_what_transformers_does"
OF_TF1_NAMES = "tests/formats/tensorflow/test_tf1_names.py"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        PARAMETERS,
        "np.asarray(array.T if parameter.transposed else array,",
        "np.asarray(array.reshape(parameter.stored_shape),",
        "kernels are reshaped to torch's layout and not transposed",
        (f"{OF_NAMES}::test_kernels_are_transposed_and_contiguous_tables_are_not",),
    ),
    Mutant(
        PARAMETERS,
        '_OLD_SUFFIXES = {"norm.gamma": "weight", "norm.beta": "bias"}',
        '_OLD_SUFFIXES = {"norm.gamma": "bias", "norm.beta": "weight"}',
        "gamma and beta of old files are exchanged",
        (f"{OF_NAMES}::test_old_spellings_bare_keys_and_buffers",),
    ),
    Mutant(
        PARAMETERS,
        "return key.removeprefix(family_of(config).prefix) if is_encoder(head, config) else key",
        "return key",
        "an encoder alone is written with its prefix",
        (f"{OF_NAMES}::test_tied_tensors_are_left_out_and_the_encoder_alone_has_no_prefix",),
    ),
    Mutant(
        FAMILIES,
        'Name("mlm_head/decoder", "cls.predictions.decoder.weight", ("V", "E"), when=untied),',
        'Name("mlm_head/decoder", "cls.predictions.decoder.weight", ("V", "E")),',
        "a decoder that is tied is asked for as well",
        (f"{OF_NAMES}::test_tied_tensors_are_left_out_and_the_encoder_alone_has_no_prefix",),
    ),
    Mutant(
        FAMILIES,
        '*dense(f"{ours}/key", f"{theirs}.self.key", "D", width),',
        '*dense(f"{ours}/key", f"{theirs}.self.query", "D", width),',
        "keys are read from the queries",
        (f"{OF_WRITE}::test_in_out_in_is_bitwise",),
    ),
    Mutant(
        STORED,
        "buffers, start) == rows.nbytes:",
        "buffers, start) > 0:",
        "rows of which only some were read are taken for whole",
        (f"{OF_SAFETENSORS}::test_reads_that_return_fewer_bytes_than_asked_for_are_continued",),
    ),
    Mutant(
        STORED,
        'raise UserError(f"{self.path}: the file became shorter while it was being read")',
        "return",
        "a file that is cut short gives whatever was in memory",
        (f"{OF_READ}::test_a_file_cut_short_after_it_was_opened_does_not_end_the_process",),
    ),
    Mutant(
        SAFETENSORS,
        "TensorEntry(dtype, shape, first + start), stop",
        "TensorEntry(dtype, shape, start), stop",
        "offsets are counted from the beginning of the file",
        (f"{OF_SAFETENSORS}::test_dtypes_come_back_as_they_went",),
    ),
    Mutant(
        SAFETENSORS,
        "for key, array in sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0]))",
        "for key, array in tensors.items()",
        "equal models are written as different files",
        (f"{OF_SAFETENSORS}::test_equal_tensors_make_equal_bytes",),
    ),
    Mutant(
        SAFETENSORS,
        'text += b" " * (-len(text) % 8)',
        'text += b""',
        "tensors are not aligned for whoever maps the file",
        (f"{OF_SAFETENSORS}::test_equal_tensors_make_equal_bytes",),
    ),
    Mutant(
        SAFETENSORS,
        '{**(metadata or {}), "format": "pt", SUM: total}',
        '{"format": "pt", **(metadata or {}), SUM: total}',
        "a caller's metadata may say another format, which transformers refuses",
        (f"{OF_SAFETENSORS}::test_format_is_pt_whatever_metadata_is_asked_for",),
    ),
    Mutant(
        SAFETENSORS,
        "return self.metadata[SUM] == digest.hexdigest()",
        "return True",
        "a flipped bit of a weight goes unnoticed",
        (f"{OF_SAFETENSORS}::test_a_single_flipped_bit_is_noticed",),
    ),
    Mutant(
        FLAX,
        'transposed=path[-1:] == ("kernel",) and',
        'transposed=path[-1:] == ("embedding",) and',
        "Flax's kernels are not turned into torch's layout, and tables are",
        ("tests/formats/test_flax_names.py::test_paths_become_torchs_names_and_kernels_are_turned",),
    ),
    Mutant(
        FLAX,
        '"gamma": "weight", "beta": "bias"}',
        '"gamma": "bias", "beta": "weight"}',
        "gamma and beta of old Flax files are exchanged",
        ("tests/formats/test_flax_names.py::test_spellings_before_transformers_4_6_are_understood",),
    ),
    Mutant(
        FLAX,
        "            done += count",
        "            done += 0",
        "the chunks of a Flax array overwrite one another",
        ("tests/formats/test_flax_msgpack.py::test_arrays_in_chunks_are_put_together",),
    ),
    Mutant(
        TORCH,
        "strides = [step * itemsize for step in tensor.stride]",
        "strides = [step * itemsize for step in sorted(tensor.stride, reverse=True)]",
        "a transposed view in a torch file is read straight",
        (f"{OF_TORCH}::test_views_of_a_storage_come_out_as_they_were",),
    ),
    Mutant(
        TORCH,
        "itemsize + tensor.offset * itemsize",
        "itemsize",
        "a view in a torch file begins where its storage does",
        (f"{OF_TORCH}::test_views_of_a_storage_come_out_as_they_were",),
    ),
    Mutant(
        TORCH,
        "tensor.storage.first * np.dtype(tensor.storage.dtype).itemsize + ",
        "",
        "a part of a storage in an old torch file begins where the whole does",
        (f"{OF_TORCH}::test_a_part_of_a_storage_in_the_old_form_begins_where_it_says",),
    ),
    Mutant(
        TORCH,
        'min(order.size, 8)) == b"big"',
        'min(order.size, 8)) == b"little"',
        "elements of a torch file are turned round",
        (f"{OF_TORCH}::test_big_endian_elements_are_turned_round",),
    ),
    Mutant(
        TORCH,
        'name.startswith("module.") for name in tensors):',
        'name.startswith("model.") for name in tensors):',
        "names of a model saved from several devices keep their module.",
        (f"{OF_TORCH}::test_a_state_dict_inside_a_training_checkpoint_is_found",),
    ),
    Mutant(
        "bert_jax/formats/torch/pickle.py",
        "if tensor.extent and (offset + tensor.extent) * np.dtype(name).itemsize > available:",
        "if False:",
        "a tensor in a torch file may reach beyond its storage",
        (f"{OF_TORCH}::test_a_tensor_that_leaves_its_storage_is_refused",),
    ),
    Mutant(
        TF1_NAMES,
        '_Row(f"{google}/kernel", f"{hf}.weight", transposed=True)',
        '_Row(f"{google}/kernel", f"{hf}.weight")',
        "Google's kernels are not turned",
        (f"{OF_TF1_NAMES}::test_renamed_tensors_are_googles_with_kernels_turned",),
    ),
    Mutant(
        TF1_NAMES,
        '_Row(f"{google}/gamma", f"{hf}.weight"), _Row(f"{google}/beta", f"{hf}.bias")',
        '_Row(f"{google}/gamma", f"{hf}.bias"), _Row(f"{google}/beta", f"{hf}.weight")',
        "Google's gamma and beta are exchanged",
        (f"{OF_TF1_NAMES}::test_albert_by_the_names_in_googles_code",),
    ),
    Mutant(
        TF1_NAMES,
        '*_dense(f"{_LAYER}/intermediate/dense", f"{_HF_LAYER}.intermediate.dense"),',
        '*_dense(f"{_LAYER}/intermediate/dense", f"{_HF_LAYER}.output.dense"),',
        "Google's intermediate layer is taken for the output of the feed-forward",
        (f"{OF_TF1_NAMES}::test_every_variable_of_a_real_checkpoint_has_a_name_that_leads_back",),
    ),
    Mutant(
        TF1_NAMES,
        "return (math.prod(shape),) if",
        "return shape if",
        "biases of the Model Garden keep an axis for the heads",
        (f"{OF_TF1_NAMES}::test_the_model_gardens_encoder_is_read",),
    ),
    Mutant(
        "bert_jax/formats/tensorflow/table.py",
        "return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF",
        "return (((crc >> 17) | (crc << 15)) + 0xA282EAD8) & 0xFFFFFFFF",
        "the checksum that Google's files are written with is turned the wrong way",
        ("tests/formats/tensorflow/test_crc32c.py::test_check_values_and_their_mask",),
    ),
    Mutant(
        READ,
        "if original in used and not _equal(tensors, stored[copy], stored[original]):",
        "if False:",
        "a decoder that differs from the table it is tied to is dropped without a word",
        (f"{OF_READ}::test_a_decoder_that_differs_from_the_embeddings_is_noticed",),
    ),
    Mutant(
        READ,
        'path == name or path.startswith(f"{name}/") for name in allowed',
        "path.startswith(name) for name in allowed",
        "allowing a part to be missing allows others whose names begin alike",
        (f"{OF_READ}::test_what_is_missing_is_an_error_unless_allowed",),
    ),
    Mutant(
        WRITE,
        "first_not_finite(flat.items())",
        "first_not_finite(())",
        "weights that are not finite are written",
        (f"{OF_WRITE}::test_weights_that_are_not_finite_are_refused",),
    ),
    Mutant(
        WRITE,
        'fields["split_special_tokens"] = False',
        'fields["split_special_tokens"] = True',
        "[MASK] in a text is cut into letters by whoever loads the folder",
        ("tests/inference/test_pipelines.py::test_a_loaded_model_and_a_run_by_googles_rules_work",),
    ),
    Mutant(
        WRITE,
        "fields[name] = float(value)",
        "fields[name] = value",
        "rates without a fraction are written as whole numbers, which transformers refuses",
        (f"{OF_WRITE}::test_the_config_has_numbers_as_numbers_and_the_storage_type",),
    ),
    Mutant(
        "bert_jax/formats/sentence_transformers.py",
        'return chosen[0] + (NORMALIZED if len(kinds) == 3 else "")',
        "return chosen[0]",
        "vectors of a folder that normalises are not",
        ("tests/inference/tasks/test_embed.py::test_the_folder_says_how_it_pools_and_where_it_cuts",),
    ),
    Mutant(
        "bert_jax/formats/source.py",
        'exported = self.folder / "export"',
        'exported = self.folder / "exported"',
        "of a fine-tuning run the last checkpoint is loaded and not the best model",
        ("tests/inference/tasks/test_task_source.py::test_of_a_fine_tuning_run_its_export_is_taken",),
    ),
    Mutant(
        HUB,
        "if there and has_branch and not overwrite:",
        "if not there and not overwrite:",
        "a push replaces a model without being asked to",
        (f"{OF_PUSH}::test_a_repository_with_files_is_replaced_only_on_request",),
    ),
    Mutant(
        HUB,
        "parent_commit=info.sha,",
        "parent_commit=None,",
        "a push overtakes another one",
        (f"{OF_PUSH}::test_a_push_that_another_overtakes_is_refused",),
    ),
    Mutant(
        HUB_FILES,
        "return suffix in _WEIGHTS_IN.get(folder, ()) or name in (CONFIG, *WEIGHTS, *TOKENIZER, *VECTORS)",
        "return name in (CONFIG, *WEIGHTS, *TOKENIZER, *VECTORS)",
        "shards of the former model stay on the hub",
        (f"{OF_PUSH}::test_a_repository_with_files_is_replaced_only_on_request",),
    ),
    Mutant(
        TRAINING_RECORD,
        ' and (step is None or row["step"] <= step)',
        "",
        "a card has the scores of a later step",
        ("tests/cli/test_commands.py::test_the_card_tells_the_training_and_no_paths",),
    ),
    Mutant(
        f"{ONNX}int8_kernels.py",
        "np.abs(kernel).max(axis=0)",
        "np.abs(kernel).max()",
        "the columns of an int8 kernel share the scale of the largest one",
        ("tests/formats/onnx/test_int8_kernels.py::test_the_graph_is_that_of_a_model_with_rounded_kernels",),
    ),
    Mutant(
        f"{ONNX}encoder.py",
        'g.op("Sub", 1.0, g.op("Cast", keys, to=FLOAT))',
        'g.op("Cast", keys, to=FLOAT)',
        "the ONNX graph attends to padding and to nothing else",
        (f"{OF_ONNX_PARITY}[bert-mlm]",),
    ),
    Mutant(
        f"{ONNX}encoder.py",
        'g.op("Mul", count, is_token)',
        "count",
        "padding takes positions in the ONNX graph of a RoBERTa",
        (f"{OF_ONNX_PARITY}[roberta-mlm]",),
    ),
    Mutant(
        f"{ONNX}encoder.py",
        'g.op("GreaterOrEqual", g.op("Unsqueeze", place, [1]), place)',
        'g.op("GreaterOrEqual", place, g.op("Unsqueeze", place, [1]))',
        "a decoder in ONNX sees later tokens",
        (f"{OF_ONNX_PARITY}[bert-causal-lm]",),
    ),
    Mutant(
        f"{ONNX}model.py",
        "activation(g, x, config.mlm_act,",
        "activation(g, x, config.hidden_act,",
        "the masked-LM head of a RoBERTa in ONNX has the activation of its layers",
        ("tests/parity/test_onnx_transformers.py::test_options_of_the_config_are_in_the_graph",),
    ),
    Mutant(
        f"{ONNX}graph.py",
        "or _bits(other) != _bits(array)",
        "",
        "a changed bit in an ONNX file is not noticed",
        (f"{OF_ONNX}::test_a_changed_byte_is_found_when_the_file_is_read_back",),
    ),
    Mutant(
        f"{ONNX}save.py",
        'head = "encoder-no-pooler"',
        "pass",
        "an ONNX model of vectors computes a pooler that nobody reads",
        (f"{OF_ONNX}::test_a_model_of_vectors_keeps_its_pooling",),
    ),
    Mutant(
        f"{ONNX}save.py",
        "build_graph(config, flat, head, own_decoder=True)",
        "build_graph(config, flat, head)",
        "the vocabulary's product stays float32 in an int8 file",
        (f"{OF_ONNX}::test_int8_holds_kernels_and_tables_and_stays_near_float32",),
    ),
    Mutant(
        "bert_jax/formats/sentence_transformers.py",
        "read_object(folder / name, optional=True) for name in SETTINGS",
        "{} for name in SETTINGS",
        "the length and the case that a sentence-transformers folder says are passed over",
        ("tests/formats/test_convert.py::test_damaged_settings_are_an_error_and_not_taken_for_none",),
    ),
    Mutant(
        HUB,
        "if license is None and evaluation is None:",
        "if False:",
        "a pushed README.md of one's own loses the comments of its metadata",
        (f"{OF_PUSH}::test_a_card_of_ones_own_stays_to_the_byte_unless_a_licence_is_added",),
    ),
    Mutant(
        "bert_jax/formats/push.py",
        "if not inside and target.parent != blobs:",
        "if False:",
        "a push follows a link to a file outside the folder",
        (f"{OF_PUSH}::test_a_link_to_what_its_owner_does_not_publish_stops_the_push",),
    ),
    Mutant(
        "bert_jax/formats/push.py",
        "inside = target.is_relative_to(home) and not _stays(target.relative_to(home))",
        "inside = target.is_relative_to(home)",
        "a push follows a link to a hidden file",
        (f"{OF_PUSH}::test_a_link_to_what_its_owner_does_not_publish_stops_the_push",),
    ),
    Mutant(
        HUB,
        "            mark.touch()",
        "            pass",
        "a download whose check was killed is never checked",
        ("tests/formats/test_hub.py::test_a_file_whose_check_was_killed_is_checked_by_the_next_call",),
    ),
    Mutant(
        HUB,
        'return re.sub(r"(?<=://)[^/\\s]*@", "", text)',
        "return text",
        "messages show the password in the address of the hub",
        ("tests/formats/test_hub.py::test_a_password_in_the_address_of_the_hub_is_used_and_not_shown",),
    ),
    Mutant(
        TORCH,
        "if total > MOST_SHARING * bound:",
        "if False:",
        "tensors of a torch file that share bytes take any memory",
        (f"{OF_TORCH}::test_tensors_that_share_a_storage_take_a_few_times_the_file",),
    ),
    Mutant(
        "bert_jax/formats/tensorflow/bundle.py",
        "if declared > len(self._slices):",
        "if False:",
        "slices that an index only declares are looked up",
        ("tests/formats/tensorflow/test_tf1_bundle.py::test_slices_that_are_not_there_take_no_memory",),
    ),
    Mutant(
        "bert_jax/inference/compiled/run.py",
        "return content.read(member.file_size)",
        "return content.read()",
        "a compiled program is unpacked beyond its declared size",
        ("tests/inference/compiled/test_compiled.py::test_a_program_is_unpacked_no_further_than_it_says",),
    ),
)
