"""SWAG with the paper's numbers: choose which of four endings continues a sentence.

Command:   python -m train.finetune configs/finetune_swag.py init=google-bert/bert-base-uncased data=swag
           data= contains train.csv and val.csv as published; task=codah, arc or hellaswag for those sets
Hardware:  1 GPU or TPU chip for base
Time:      73,546 questions, about 13,800 steps of 16 x 4 rows; not measured
Expected:  accuracy on the dev set: base 81.6, large 86.6; on the test set: large 86.3
           (https://arxiv.org/abs/1810.04805, table 4)
"""

from bert_jax.training.optimizer import OptimizerConfig
from train.finetuning.recipe import FinetuneConfig


def get_config() -> FinetuneConfig:
    return FinetuneConfig(
        task="swag",
        optimizer=OptimizerConfig(learning_rate=2e-5, warmup_steps=0, bias_correction=True),
        epochs=3,
        batch=16,
        max_length=128,
    )
