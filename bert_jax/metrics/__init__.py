"""Scores of predictions against gold labels, by the official rules, with NumPy alone."""

from bert_jax.metrics.classification import accuracy, confusion_matrix, f1, matthews_correlation
from bert_jax.metrics.correlation import pearson, ranks, spearman
from bert_jax.metrics.entities import Entity, Score, entities, entity_scores
from bert_jax.metrics.korquad import character_f1, korquad
from bert_jax.metrics.squad import Question, exact_match, normalise, questions, squad1, squad2, token_f1

__all__ = [
    "Entity",
    "Question",
    "Score",
    "accuracy",
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
    "ranks",
    "spearman",
    "squad1",
    "squad2",
    "token_f1",
]
