"""Mutants of the scores."""

from tests.mutants.mutant import Mutant

SQUAD = "bert_jax/evaluation/squad.py"
ENTITIES = "bert_jax/evaluation/metrics.py"
CLASSES = "bert_jax/evaluation/metrics.py"
OF_SQUAD = "tests/evaluation/test_squad.py"
OF_CLASSES = "tests/evaluation/test_classification.py"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        SQUAD,
        r'_ARTICLES = re.compile(r"\b(a|an|the)\b")',
        r'_ARTICLES = re.compile(r"\b(an|the)\b")',
        "the article a counts as a word of an answer",
        (f"{OF_SQUAD}::test_normalisation",),
    ),
    Mutant(
        SQUAD,
        '_ARTICLES.sub(" ", text.lower().translate(PUNCTUATION))',
        '_ARTICLES.sub(" ", text.lower()).translate(PUNCTUATION)',
        "articles are taken away before punctuation and not after it",
        (f"{OF_SQUAD}::test_normalisation",),
    ),
    Mutant(
        SQUAD,
        "(Counter(found) & Counter(right)).total()",
        "len(set(found) & set(right))",
        "a word that both answers have twice counts once",
        (f"{OF_SQUAD}::test_random_datasets_score_as_the_script_of_version_1_does",),
    ),
    Mutant(
        SQUAD,
        "scores[id] > threshold else",
        "scores[id] >= threshold else",
        "an answer at the threshold is taken for none",
        (f"{OF_SQUAD}::test_random_datasets_score_as_the_script_of_version_2_does",),
    ),
    Mutant(
        SQUAD,
        "-1.0 if predictions[id] else 0.0",
        "0.0",
        "the best threshold is sought as if wrong answers cost nothing",
        (f"{OF_SQUAD}::test_random_datasets_score_as_the_script_of_version_2_does",),
    ),
    Mutant(
        ENTITIES,
        'return prefix in ("O", "B", "S") or previous in ("E", "S") or kind != type_',
        'return prefix in ("O", "B", "S") or previous in ("E", "S")',
        "an entity goes on where the type of the tag changes",
        ("tests/evaluation/test_entities.py::test_malformed_sequences",),
    ),
    Mutant(
        ENTITIES,
        'return prefix in ("O", "B", "S") or',
        'return prefix in ("O", "S") or',
        "two entities of a type side by side are one",
        ("tests/evaluation/test_entities.py::test_entities_are_seqeval_s",),
    ),
    Mutant(
        ENTITIES,
        "found.append(Entity(kind, start, position - 1))",
        "found.append(Entity(kind, start, start))",
        "an entity is right where its first word and type are",
        ("tests/evaluation/test_entities.py::test_entities_are_seqeval_s",),
    ),
    Mutant(
        CLASSES,
        "float(covariance / np.sqrt(spread))",
        "float(covariance / spread)",
        "Matthews' correlation lacks the root",
        (f"{OF_CLASSES}::test_matthews_correlation",),
    ),
    Mutant(
        CLASSES,
        "hits.sum(keepdims=True), both.sum(keepdims=True)",
        "hits.mean(keepdims=True), hits.sum(keepdims=True)",
        "micro F1 is not over all decisions",
        (f"{OF_CLASSES}::test_several_labels_an_example",),
    ),
    Mutant(
        CLASSES,
        "x, y = x - x.mean(), y - y.mean()",
        "pass",
        "Pearson's correlation leaves the means in",
        ("tests/evaluation/test_correlation.py::test_correlations_are_scipys_to_the_last_digit_that_is_printed",),
    ),
    Mutant(
        CLASSES,
        "(last - (counts - 1) / 2)[inverse]",
        "last[inverse]",
        "equal numbers take the last of their ranks",
        ("tests/evaluation/test_correlation.py::test_ranks_of_equal_numbers_are_their_mean",),
    ),
    Mutant(
        "bert_jax/evaluation/score.py",
        "positive=names[1] if",
        "positive=names[0] if",
        "F1 of MRPC and QQP is that of the pairs that differ",
        ("tests/evaluation/test_score.py::test_glue",),
    ),
    Mutant(
        "bert_jax/evaluation/score.py",
        'metrics.f1(labels, predictions, "macro")}',
        'metrics.f1(labels, predictions, "micro")}',
        "macro-F1 of parts of speech is their accuracy",
        ("tests/evaluation/test_word_scores.py::test_scores_are_scikit_learn_s",),
    ),
    Mutant(
        "bert_jax/evaluation/int8.py",
        "known = _in_glues_words(graph.labels, names, task)",
        "known = names",
        "classes in another order than GLUE's are scored as if in that order",
        ("tests/evaluation/test_int8.py::test_a_classifier_is_scored_by_the_names_of_its_classes",),
    ),
)
