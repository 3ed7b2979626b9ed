"""Mutants of the data: text, tokens, examples, masks, batches."""

from tests.mutants.mutant import Mutant

MASKING = "bert_jax/data/pretraining/masking.py"
EXAMPLES = "bert_jax/data/pretraining/examples.py"
FAST = "bert_jax/data/tokenizer/fast.py"
OF_FAST = "tests/data/tokenizer/test_fast.py"
HASH = "bert_jax/data/pretraining/counter_hash.py"
ROWS = "bert_jax/data/pretraining/rows.py"
BATCHES = "bert_jax/data/pretraining/batches.py"
SHARDS = "bert_jax/data/pretraining/shards.py"
ARRAYS = "bert_jax/data/pretraining/arrays.py"
BUCKET = "bert_jax/data/pretraining/bucket.py"
PACKING = "bert_jax/data/pretraining/packing.py"
PACKED = "bert_jax/data/pretraining/packed_batches.py"
PACKED_ROWS = "bert_jax/data/packed_rows.py"
OF_PACKED_ROWS = "tests/inference/engine/test_packing.py"
OF_PACKED = "tests/data/pretraining/test_packed_batches.py"
MIXTURE = "bert_jax/data/pretraining/mixture.py"
OF_MIXTURE = "tests/data/pretraining/test_mixture.py"
OF_ARRAYS = "tests/data/pretraining/test_arrays.py"
VERIFIED = "bert_jax/data/pretraining/verified.py"
DIRECTORY = "bert_jax/data/pretraining/directory.py"
MANIFEST = "bert_jax/data/pretraining/manifest.py"
OF_MANIFEST = "tests/data/pretraining/test_manifest.py"
OF_VERIFIED = "tests/data/pretraining/test_verified.py"
OF_BUCKET = "tests/data/pretraining/test_bucket.py"
OF_MASKING = "tests/data/pretraining/test_masking.py"
OF_EXAMPLES = "tests/data/pretraining/test_examples.py"
OF_BATCHES = "tests/data/pretraining/test_batches.py"
OF_PERMUTATION = "tests/data/pretraining/test_permutation.py"
SHARES = f"{OF_MASKING}::test_one_in_ten_stays_one_in_ten_is_random_and_the_rest_is_mask"

WRAPPED = "bert_jax/data/text/wrapped.py"
OF_WRAPPED = "tests/data/text/test_wrapped.py"
OF_SOURCES = "tests/data/text/test_sources.py"
A_BOOK = f"{OF_WRAPPED}::test_a_wrapped_book_gives_back_its_paragraphs_and_keeps_all_else_as_lines"

PLAIN = "bert_jax/data/text/plain.py"
OF_PLAIN = "tests/data/text/test_plain.py"
JOBS = "train/preparation/jobs.py"
OF_PLAIN_TEXT = "tests/train/preparation/test_plain.py"
LINES = "bert_jax/data/text/lines.py"
CORPUS = "bert_jax/data/text/corpus.py"
OF_BOUNDS = "tests/data/text/test_bounds.py"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        EXAMPLES,
        "room = np.where(again, (max_seq_length - 3) // 2, max_seq_length - 2)",
        "room = np.where(again, max_seq_length - 3, max_seq_length - 2)",
        "a sentence that stands twice is longer than its row",
        (f"{OF_EXAMPLES}::test_some_sentences_stand_in_their_row_twice",),
    ),
    Mutant(
        EXAMPLES,
        "draws.uniform(len(starts)) < twice",
        "draws.uniform(len(starts)) > twice",
        "the other sentences stand twice",
        (f"{OF_EXAMPLES}::test_the_share_that_stands_twice_is_drawn_and_in_each_pass_anew",),
    ),
    Mutant(
        EXAMPLES,
        "a_end = a_end - draws.below(choices)",
        "a_end = a_end - (b_start - a_start) * again",
        "A lacks as much as B, so the distance of doubles tells the length",
        (f"{OF_EXAMPLES}::test_no_distance_in_a_row_tells_where_the_double_of_a_token_is",),
    ),
    Mutant(
        LINES,
        "_ZSTD_BYTES_AT_ONCE = 2 << 10",
        "_ZSTD_BYTES_AT_ONCE = 128 << 10",
        "a small zstd file takes gigabytes of memory",
        (f"{OF_BOUNDS}::test_a_zstd_file_is_decompressed_a_little_at_a_time",),
    ),
    Mutant(
        CORPUS,
        "_check_inflation(file.metadata, path)",
        "pass",
        "a small Parquet file takes gigabytes of memory",
        (f"{OF_BOUNDS}::test_parquet_that_inflates_as_no_text_does_is_refused",),
    ),
    Mutant(
        CORPUS,
        "_PARQUET_ROWS = 8",
        "_PARQUET_ROWS = 256",
        "rows that repeat a long text are all in memory",
        (f"{OF_BOUNDS}::test_parquet_that_repeats_one_long_text_takes_the_memory_of_a_few",),
    ),
    Mutant(
        "bert_jax/files.py",
        "if not level:",
        "if True:",
        "deep nesting is read, and ends in a RecursionError elsewhere",
        ("tests/test_files.py::test_json_beyond_its_bounds_is_one_line",),
    ),
    Mutant(
        "bert_jax/config.py",
        "value is None or value <= most",
        "True",
        "a config of ten million layers is taken",
        ("tests/test_config.py::test_a_size_beyond_any_model_is_refused_before_anything_is_made",),
    ),
    Mutant(
        "bert_jax/errors.py",
        "line = in_a_line(message[: 2 * LONGEST_MESSAGE])",
        "line = message[: 2 * LONGEST_MESSAGE]",
        "a file puts lines of its own into messages",
        ("tests/test_errors.py::test_a_message_is_one_line_whatever_it_was_made_of",),
    ),
    Mutant(
        WRAPPED,
        "return None if column is None else column.width - _widths(a, b, column.wide)[1] - 1",
        "return None if column is None else column.width - _widths(a, b, column.wide)[0] - 1",
        "a line counts as full only if it is as long as the column",
        (A_BOOK,),
    ),
    Mutant(
        WRAPPED,
        "if high > low and high + low > len(pairs) / 2:",
        "if False:",
        "verse counts as wrapped",
        (f"{OF_WRAPPED}::test_a_text_without_a_column_stays_as_it_is",),
    ),
    Mutant(
        WRAPPED,
        'return "joined" if difference > 0',
        'return "joined" if difference > 99',
        "words stay cut where the printer cut them",
        (f"{OF_WRAPPED}::test_a_word_cut_by_a_hyphen_is_written_as_elsewhere_in_the_text",),
    ),
    Mutant(
        "bert_jax/data/text/furniture.py",
        "            inside = False",
        "            inside = True",
        "Project Gutenberg's footer is learnt as part of the book",
        (A_BOOK,),
    ),
    Mutant(
        "bert_jax/data/text/documents.py",
        "chars >= self._least_chars",
        "chars >= 1",
        "a heading is a document of its own",
        (f"{OF_SOURCES}::test_a_chapter_takes_its_heading_with_it",),
    ),
    Mutant(
        MASKING,
        "action_BP < int(masked * 2**32)",
        "action_BP < int((masked + 0.05) * 2**32)",
        "85 % of the chosen tokens become [MASK]",
        (SHARES,),
    ),
    Mutant(
        MASKING,
        "action_BP < int((1 - random) * 2**32)",
        "action_BP < 2**32",
        "no chosen token is replaced by a random one",
        (SHARES,),
    ),
    Mutant(
        MASKING,
        "below(random_bits_BP, vocabulary.size)",
        "below(random_bits_BP, vocabulary.size - 1)",
        "the last token of the vocabulary never replaces another",
        (f"{OF_MASKING}::test_random_ids_are_uniform_over_the_whole_vocabulary",),
    ),
    Mutant(
        MASKING,
        "max(1, round(n * probability))",
        "max(1, math.ceil(n * probability))",
        "the number of masks is rounded up",
        (f"{OF_MASKING}::test_the_number_of_predictions_is_bert_s",),
    ),
    Mutant(
        MASKING,
        "min(max_predictions, max(1, round(n",
        "min(max_predictions, max(0, round(n",
        "a short row has no mask",
        (f"{OF_MASKING}::test_the_number_of_predictions_is_bert_s",),
    ),
    Mutant(
        MASKING,
        "(input_ids_BL != vocabulary.cls_id) & (input_ids_BL != vocabulary.sep_id)",
        "(input_ids_BL != vocabulary.cls_id)",
        "[SEP] may be masked",
        (f"{OF_MASKING}::test_count_masks_just_so_many_and_never_a_special_token",),
    ),
    Mutant(
        MASKING,
        "starts_BL = candidates_BL & ~continues_BL",
        "starts_BL = candidates_BL.copy()",
        "whole words are masked piece by piece",
        (f"{OF_MASKING}::test_words_are_chosen_as_by_the_written_out_loop",),
    ),
    Mutant(
        MASKING,
        "takes_B = size_B <= left_B",
        "takes_B = left_B > 0",
        "a word may exceed the row's number of masks",
        (f"{OF_MASKING}::test_a_word_that_would_exceed_the_number_is_passed_over",),
    ),
    Mutant(
        MASKING,
        "shares = 1 / np.arange(1, ngram + 1)",
        "shares = 1.0 * np.arange(1, ngram + 1)",
        "long n-grams are likelier than short ones",
        (f"{OF_MASKING}::test_short_ngrams_are_likelier_one_over_n",),
    ),
    Mutant(
        MASKING,
        "derive(keys_B, _REPLACEMENT)",
        "derive(keys_B, _ACTION)",
        "which token replaces another follows from that it is replaced",
        (f"{OF_MASKING}::test_random_ids_are_uniform_over_the_whole_vocabulary",),
    ),
    Mutant(
        MASKING,
        "return derive(seed, epochs_B, examples_B)",
        "return derive(seed, 0 * epochs_B, examples_B)",
        "masks are the same in each epoch",
        (f"{OF_MASKING}::test_masks_change_with_epoch_seed_and_example",),
    ),
    Mutant(
        EXAMPLES,
        "other_half = draws.uniform(len(at)) < 0.5",
        "other_half = draws.uniform(len(at)) < 0.45",
        "less than half of the sentence pairs are random",
        (f"{OF_EXAMPLES}::test_random_share_is_half_and_more_where_chunks_are_single_sentences",),
    ),
    Mutant(
        EXAMPLES,
        "2 + draws.below(np.full(len(document), max_tokens - 1))",
        "2 + draws.below(np.full(len(document), max_tokens))",
        "a short target may be longer than the row",
        (f"{OF_EXAMPLES}::test_short_targets_reach_from_2_to_the_length_and_no_token_of_them_is_cut",),
    ),
    Mutant(
        EXAMPLES,
        "draws.uniform(len(document)) < short_seq_prob",
        "draws.uniform(len(document)) < 2 * short_seq_prob",
        "twice as many documents aim at a shorter length",
        (f"{OF_EXAMPLES}::test_distribution_is_googles",),
    ),
    Mutant(
        EXAMPLES,
        "other += other >= document",
        "other += other > document",
        "a random second sentence may come from the first one's document",
        (f"{OF_EXAMPLES}::test_every_row_fits_and_lies_in_one_document_a_side",),
    ),
    Mutant(
        EXAMPLES,
        "max_tokens = max_seq_length - 3",
        "max_tokens = max_seq_length - 2",
        "a pair with its three special tokens is longer than the row",
        (f"{OF_EXAMPLES}::test_every_row_fits_and_lies_in_one_document_a_side",),
    ),
    Mutant(
        EXAMPLES,
        "at = np.where(random_b, split, stop)",
        "at = stop",
        "sentences that made room for a random one are lost",
        (f"{OF_EXAMPLES}::test_each_dupe_has_every_token_once_as_a_or_true_neighbour",),
    ),
    Mutant(
        EXAMPLES,
        "a_start = spans.a_start + draws.heads(a_length - a_kept)",
        "a_start = spans.a_start + 0 * draws.heads(a_length - a_kept)",
        "a long first sentence is cut at its end alone",
        (f"{OF_EXAMPLES}::test_overlong_pairs_lose_from_the_longer_side_at_both_ends",),
    ),
    Mutant(
        EXAMPLES,
        "starts, ends = (sentences[:-1] + document).tolist(), (sentences[1:] + document).tolist()",
        "starts, ends = sentences[:-1].tolist(), sentences[1:].tolist()",
        "the separators between documents do not count towards the length of a row",
        (f"{OF_EXAMPLES}::test_rows_across_documents_are_those_of_the_written_out_rule",),
    ),
    Mutant(
        EXAMPLES,
        'first, last = bounds.searchsorted((start, end - 1), side="right").tolist()',
        'first, last = bounds.searchsorted((start, end), side="right").tolist()',
        "a row that ends with its document has a separator too many",
        (f"{OF_EXAMPLES}::test_rows_across_documents_are_those_of_the_written_out_rule",),
    ),
    Mutant(
        EXAMPLES,
        "(np.tile(edges, dupe_factor) for edges in",
        "(edges for edges in",
        "there is one pass over sentences, however many are wanted",
        (f"{OF_EXAMPLES}::test_rows_of_one_sentence_are_the_sentences_in_every_pass",),
    ),
    Mutant(
        PLAIN,
        "for word in words[1:]) <=",
        "for word in words) <=",
        "the capital that begins a sentence counts as a name",
        (f"{OF_PLAIN}::test_a_fifth_of_the_words_may_be_names",),
    ),
    Mutant(
        JOBS,
        "kept = [sentence for sentence in found if is_plain(sentence)]",
        "kept = found",
        "nothing is left out",
        (f"{OF_PLAIN_TEXT}::test_a_row_is_a_plain_sentence_and_the_vocabulary_is_theirs",),
    ),
    Mutant(
        ROWS,
        "pieces += (separator, other)",
        "pieces += (other, separator)",
        "batches put the separator after the next document",
        (f"{OF_BATCHES}::test_rows_are_the_examples_of_the_index",),
    ),
    Mutant(
        MASKING,
        "continues_BL[:, 1:] &= input_ids_BL[:, :-1] != vocabulary.sep_id",
        "continues_BL[:, 1:] &= True",
        "a word goes on in the next document",
        (f"{OF_BATCHES}::test_a_word_ends_with_its_document",),
    ),
    Mutant(
        EXAMPLES,
        "return index.take(draws.permutation(len(index)))",
        "return index",
        "the index is in the order of the text",
        (f"{OF_EXAMPLES}::test_rows_are_shuffled_so_that_a_prefix_is_a_sample",),
    ),
    Mutant(
        EXAMPLES,
        "token_type_ids[len(input_ids) - second :] = 1",
        "token_type_ids[len(input_ids) - second + 1 :] = 1",
        "the first token of B has A's type",
        (f"{OF_EXAMPLES}::test_a_row_spelled_out",),
    ),
    Mutant(
        HASH,
        "(row >= rows)",
        "(row > rows)",
        "the shuffle leaves its grid and may never end",
        (f"{OF_PERMUTATION}::test_every_number_comes_exactly_once_for_every_small_length",),
    ),
    Mutant(
        HASH,
        "return 8 if size > _LARGE else 24",
        "return 2",
        "the shuffle mixes too little to look shuffled",
        (f"{OF_PERMUTATION}::test_an_epoch_looks_shuffled_and_unlike_the_next",),
    ),
    Mutant(
        HASH,
        "x[outside] = _feistel(x[outside], *those)",
        "x[outside] = x[outside] % sizes",
        "numbers outside the range are folded in, so that some come twice",
        (f"{OF_PERMUTATION}::test_every_number_comes_exactly_once_for_every_small_length",),
    ),
    Mutant(
        BATCHES,
        "derive(self._order_key, int(epoch))",
        "derive(self._order_key, 0)",
        "each epoch has the order of the first",
        (f"{OF_BATCHES}::test_each_epoch_has_each_example_once_whatever_the_batch_size",),
    ),
    Mutant(
        BATCHES,
        'fill = {"next_sentence_label": IGNORED_LABEL,',
        'fill = {"next_sentence_label": 0,',
        "rows that only fill the last batch count as sentence pairs",
        (f"{OF_BATCHES}::test_evaluation_counts_every_held_out_example_once",),
    ),
    Mutant(
        BATCHES,
        "epoch + (offset + rows_B) // len(self)",
        "epoch + 0 * rows_B",
        "a batch that begins in one epoch ends with that epoch's order",
        (f"{OF_BATCHES}::test_each_epoch_has_each_example_once_whatever_the_batch_size",),
    ),
    Mutant(
        BATCHES,
        '"weights": chosen_BP.astype(np.float32),',
        '"weights": np.ones_like(chosen_BP, np.float32),',
        "places without a static mask are predicted too",
        (f"{OF_BATCHES}::test_static_masks_are_the_ones_prepared",),
    ),
    Mutant(
        DIRECTORY,
        'if sha256 != entry["sha256"]:',
        "if False:",
        "changed bytes of a shard go unnoticed",
        ("tests/data/pretraining/test_shards.py::test_verify_finds_every_changed_file",),
    ),
    Mutant(
        MANIFEST,
        'if manifest.get("checksum") != manifest_checksum(manifest):',
        "if False:",
        "a changed manifest goes unnoticed",
        ("tests/data/pretraining/test_shards.py::test_verify_finds_a_changed_manifest",),
    ),
    Mutant(
        MIXTURE,
        "due = (number + 0.5) / self.counts[source]",
        "due = (number + 1.0) / self.counts[source]",
        "rows of a mixture come from another source than the one that is due",
        (f"{OF_MIXTURE}::test_rows_come_from_the_source_that_is_due",),
    ),
    Mutant(
        PACKED_ROWS,
        "begins = begins - begins[np.cumsum(counts) - counts][row_of]  # in its row",
        "pass",
        "packed sequences begin where they would in one long row",
        (f"{OF_PACKED_ROWS}::test_packed_arrays_say_what_each_token_is",),
    ),
    Mutant(
        PACKED_ROWS,
        "filled(position, 0),",
        "filled(column, 0),",
        "positions of a packed sequence go on from the one before it",
        (f"{OF_PACKED_ROWS}::test_packed_arrays_say_what_each_token_is",),
    ),
    Mutant(
        PACKED_ROWS,
        "filled(place_of[sequence] + 1, 0),",
        "filled(0 * place_of[sequence] + 1, 0),",
        "packed sequences see one another",
        (f"{OF_PACKED_ROWS}::test_packed_arrays_say_what_each_token_is",),
    ),
    Mutant(
        PACKING,
        "put(taken, (*group.lengths, own), room - own)",
        "put(taken, (*group.lengths, own), room)",
        "more examples share a row than have room in it",
        (f"{OF_PACKED}::test_groups_hold_every_example_once_and_no_row_overflows",),
    ),
    Mutant(
        PACKING,
        "together = min(length // own, most)",
        "together = 1",
        "examples of equal length never share a row",
        (f"{OF_PACKED}::test_rows_are_those_of_placing_the_examples_one_by_one",),
    ),
    Mutant(
        PACKING,
        "ranks_E = (self._firsts[group_B] + within_B[:, None])[held_BK]",
        "ranks_E = (0 * self._firsts[group_B] + within_B[:, None])[held_BK]",
        "some examples come several times in an epoch of packed rows, others never",
        (f"{OF_PACKED}::test_an_epoch_has_every_place_of_the_order_once",),
    ),
    Mutant(
        PACKED,
        'examples["mlm_positions"][chosen_EP] + starts_E[of_example_M]',
        'examples["mlm_positions"][chosen_EP]',
        "all masks of a packed row are looked for in its first example",
        (f"{OF_PACKED}::test_an_epoch_has_the_examples_and_masks_that_it_has_without_packing",),
    ),
    Mutant(
        MIXTURE,
        "found.append((k, here_B, self._first_rows[k] + number_B[here_B]))",
        "found.append((k, here_B, number_B[here_B]))",
        "a phase begins each source of a mixture anew",
        (f"{OF_MIXTURE}::test_a_mixture_goes_on_where_another_left_each_source",),
    ),
    Mutant(
        "train/pretraining/mixture.py",
        "used, offset = used + Pattern(shares).before(rows), offset - rows",
        "offset -= rows",
        "a phase begins each directory of a mixture anew",
        ("tests/train/pretraining/test_mixture.py::test_phases_continue_each_part_whatever_their_shares_and_lengths",),
    ),
    Mutant(
        "train/pretraining/mixture.py",
        "np.zeros(len(self.parts), np.int64) + left_out, first_row - sum(left_out)",
        "np.zeros(len(self.parts), np.int64), first_row - sum(left_out)",
        "a run on a mixture sees the rows again that another run used",
        (
            "tests/train/pretraining/test_mixture.py::test_a_run_continues_in_each_part_after_the_rows_that_another_run_used",
        ),
    ),
    Mutant(
        "train/pretraining/mixture.py",
        "part.tokens ** (1 / config.data_temperature)",
        "part.tokens**config.data_temperature",
        "a temperature above 1 takes from the small corpora",
        ("tests/train/pretraining/test_mixture.py::test_shares_are_weights_or_follow_the_temperature",),
    ),
    Mutant(
        VERIFIED,
        "if len(file) and open_maps() < most_maps():",
        "if len(file):",
        "a large corpus has more open files than a process may have",
        (f"{OF_ARRAYS}::test_a_terabyte_is_read_at_random_with_few_files_and_little_memory",),
    ),
    Mutant(
        ARRAYS,
        "if size > _LONGEST_HEADER:",
        "if False:",
        "a header takes as much memory as its file says",
        (f"{OF_ARRAYS}::test_a_header_that_is_not_one_is_named",),
    ),
    Mutant(
        ARRAYS,
        "if len(array) != shape[0]:",
        "if False:",
        "the tokens of another shard go unnoticed",
        (f"{OF_BATCHES}::test_damage_is_one_clear_line",),
    ),
    Mutant(
        BUCKET,
        "if len(content) == stop - start and self._sums.is_right(content, number):",
        "if len(content) == stop - start:",
        "what a bucket sends is not verified",
        (f"{OF_BUCKET}::test_what_is_damaged_in_the_bucket_is_one_line",),
    ),
    Mutant(
        BUCKET,
        "if self._seen[0] != name:",
        "if not self._seen[1]:",
        "blocks of a file that the cache has removed count as fetched",
        (f"{OF_BUCKET}::test_the_cache_stays_within_its_bound_and_the_batches_right",),
    ),
    Mutant(
        BUCKET,
        "if used <= 0.9 * most:",
        "if True:",
        "the cache grows past its bound",
        (f"{OF_BUCKET}::test_the_cache_stays_within_its_bound_and_the_batches_right",),
    ),
    Mutant(
        MANIFEST,
        "if not _INSIDE(name):",
        "if False:",
        "a manifest can name files outside its directory",
        (f"{OF_VERIFIED}::test_a_manifest_that_names_files_elsewhere_is_refused_with_its_sum_right_too",),
    ),
    Mutant(
        MANIFEST,
        '_check_inside(name, f"{self.name}.{_ENTRIES}")',
        "pass",
        "a list can name files outside its directory",
        (f"{OF_MANIFEST}::test_a_list_cannot_name_files_elsewhere",),
    ),
    Mutant(
        MANIFEST,
        'self._count, self._facts, self._open = int(facts["count"]), facts, open_array',
        'self._count, self._facts, self._open = int(facts["count"]), facts, open_array; self.before',
        "a start reads the lists of files",
        (f"{OF_MANIFEST}::test_a_start_reads_no_more_of_a_corpus_of_many_shards",),
    ),
    Mutant(
        MANIFEST,
        "start, stop = self._starts[number : number + 2][:, 0].tolist()",
        "start, stop = self._starts[:][number : number + 2, 0].tolist()",
        "an entry needs the whole list",
        (f"{OF_MANIFEST}::test_a_row_needs_the_blocks_of_the_lists_that_have_its_entries",),
    ),
    Mutant(
        VERIFIED,
        "if not self._sums.is_right(content, number):",
        "if False:",
        "training reads damaged data",
        (f"{OF_VERIFIED}::test_a_damaged_block_is_named_with_what_to_do",),
    ),
    Mutant(
        VERIFIED,
        "(first + stop * width - 1) // block + 1):",
        "(first + start * width) // block + 1):",
        "only the first block of a row is verified",
        (f"{OF_VERIFIED}::test_every_block_of_a_row_is_verified",),
    ),
    Mutant(
        "bert_jax/data/pretraining/lookahead.py",
        "for coming in range(step, step + 1 + STEPS):",
        "for coming in range(step, step + 1):",
        "nothing is read ahead",
        (f"{OF_BUCKET}::test_the_coming_steps_are_read_ahead",),
    ),
    Mutant(
        SHARDS,
        '"<u2" if vocab_size <= 1 << 16 else "<u4"',
        '"<u2"',
        "ids past 65535 are cut to 16 bits",
        ("tests/data/pretraining/test_shards.py::test_ids_past_65535_get_wider_tokens",),
    ),
    Mutant(
        "bert_jax/data/tasks/length_batches.py",
        "best[i].cost + j * (before[j] - before[i])",
        "best[i].cost + (j - i) * (before[j] - before[i])",
        "the lengths that batches are padded to save no padding",
        ("tests/data/tasks/test_length_batches.py::test_no_other_lengths_compute_fewer_positions",),
    ),
    Mutant(
        "bert_jax/data/tasks/encoded.py",
        "mask = np.arange(plan.length) < lengths[:, None]",
        "mask = np.arange(plan.length) <= lengths[:, None]",
        "the first place of padding is attended to",
        ("tests/data/tasks/test_encoded.py::test_rows_are_the_tokenizers",),
    ),
    Mutant(
        "bert_jax/data/tokenizer/ids.py",
        "return self.unk_token_id if found is None else found",
        "return found",
        "a token outside the vocabulary has no id",
        ("tests/parity/test_tokenizer_tutorials.py::test_a_snippet_gives_what_it_gives_in_transformers",),
    ),
    Mutant(
        FAST,
        "if found != PROVEN:",
        "if not found:",
        "a version of nanotoken that nobody compared makes the ids",
        (f"{OF_FAST}::test_what_may_differ_is_named_in_one_line_and_not_used",),
    ),
    Mutant(
        FAST,
        "return encode if wrong is None else",
        "return encode if True else",
        "nanotoken is used though its ids differ",
        (f"{OF_FAST}::test_what_may_differ_is_named_in_one_line_and_not_used",),
    ),
    Mutant(
        FAST,
        "for _ in range(2):  # the second time from its memory",
        "for _ in range(1):",
        "ids that nanotoken remembers wrongly are not noticed",
        (f"{OF_FAST}::test_what_may_differ_is_named_in_one_line_and_not_used",),
    ),
    Mutant(
        "bert_jax/data/tasks/tags.py",
        "if not id.isdecimal():",
        "if False:",
        "multiword tokens and empty nodes of CoNLL-U are words",
        ("tests/data/tasks/test_tag_readers.py::test_universal_dependencies",),
    ),
    Mutant(
        "bert_jax/data/tokenizer/ids.py",
        "if self._backend.encode_special_tokens == self.literal_special_tokens:",
        "if False:",
        "[MASK] in a text is a special token where it should be text",
        ("tests/surgery/test_vocabulary.py::test_special_tokens_in_a_text_stay_text_once_byte_level_words_are_added",),
    ),
    Mutant(
        "bert_jax/data/text/markdown.py",
        "elif marks.startswith(fence) and not rest.strip():",
        "else:",
        "a fence of three marks closes a block of code of four",
        ("tests/data/text/test_sources.py::test_a_long_markdown_file_is_not_cut_within_code",),
    ),
)
