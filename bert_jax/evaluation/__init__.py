"""Scores by the official rules, with NumPy alone (`metrics`, `squad`), and BLiMP (`blimp`, which runs a model).

`score` reads predictions from a benchmark's own file formats, `predictions` those of our runs. `linear_probe` fits a
classifier to vectors, and `int8` compares a graph in int8 with the one in float32.
"""

from bert_jax.evaluation.metrics import (
    Entity,
    Score,
    accuracy,
    average_precision,
    confusion_matrix,
    entities,
    entity_scores,
    f1,
    matthews_correlation,
    pearson,
    r2,
    ranks,
    roc_auc,
    spearman,
)
from bert_jax.evaluation.squad import (
    Question,
    character_f1,
    exact_match,
    korquad,
    normalise,
    questions,
    squad1,
    squad2,
    token_f1,
)

__all__ = [
    "Entity",
    "Question",
    "Score",
    "accuracy",
    "average_precision",
    "character_f1",
    "confusion_matrix",
    "entities",
    "entity_scores",
    "exact_match",
    "f1",
    "korquad",
    "matthews_correlation",
    "normalise",
    "pearson",
    "questions",
    "r2",
    "ranks",
    "roc_auc",
    "spearman",
    "squad1",
    "squad2",
    "token_f1",
]
