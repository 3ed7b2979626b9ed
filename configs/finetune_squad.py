"""SQuAD 1.1 with the paper's numbers: find the answer to a question in a passage.

Command:   python -m train.finetune configs/finetune_squad.py init=google-bert/bert-base-uncased data=squad
           SQuAD 2.0, where questions may have no answer: task=squad2 epochs=2 batch=48
Hardware:  1 GPU or TPU chip for base
Time:      87,599 questions of SQuAD 1.1, about 8,300 steps; not measured
Expected:  EM / F1 on the dev set of 1.1: base 80.8 / 88.5, large 84.1 / 90.9; of 2.0: large 78.7 / 81.9
           (https://arxiv.org/abs/1810.04805, tables 2 and 3; 3 epochs at 5e-5 and 2 at the same rate)
"""

from bert_jax.training.optimizer import OptimizerConfig
from train.finetuning.recipe import FinetuneConfig


def get_config() -> FinetuneConfig:
    return FinetuneConfig(
        task="squad1",
        optimizer=OptimizerConfig(learning_rate=5e-5, warmup_steps=0, bias_correction=True),
        epochs=3,
        batch=32,
        max_length=384,
        max_question_length=64,
        max_answer_length=30,
    )
