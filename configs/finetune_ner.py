"""Entities of CoNLL-2003 with the paper's numbers: a tag for each word, with neighbouring sentences as context.

Command:   python -m train.finetune configs/finetune_ner.py init=google-bert/bert-base-cased data=conll2003
           data= contains train, dev and test (.txt, .conll, .tsv): a word and its tag per line, -DOCSTART- between
           documents; or .jsonl with tokens and ner_tags
Hardware:  1 GPU or TPU chip for base
Time:      14,041 sentences, about 1,760 steps; not measured
Expected:  entity F1 on dev / test: base 96.4 / 92.4, large 96.6 / 92.8, cased models, the mean of 5 runs
           (https://arxiv.org/abs/1810.04805, table 7); single sentences (document_context=false): 0.4 to 1 lower.
           freeze=all trains the tag layer alone; the paper's feature-based runs add a two-layer BiLSTM
"""

from bert_jax.training.optimizer import OptimizerConfig
from train.finetuning.recipe import FinetuneConfig


def get_config() -> FinetuneConfig:
    return FinetuneConfig(
        task="tag",
        optimizer=OptimizerConfig(learning_rate=5e-5, warmup_steps=0, bias_correction=True),
        epochs=4,
        batch=32,
        max_length=256,
        document_context=True,
    )
