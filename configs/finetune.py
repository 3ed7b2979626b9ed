"""Fine-tuning with the paper's numbers: classification and regression, GLUE's tasks or your own table.

Command:   python -m train.finetune configs/finetune.py init=google-bert/bert-base-uncased task=mrpc data=glue/MRPC
Hardware:  1 GPU or TPU chip for base; small models on a CPU
Time:      minutes for the small tasks of GLUE
Expected:  base / large on GLUE's test sets: MNLI-m 84.6 / 86.7, MNLI-mm 83.4 / 85.9, QQP 71.2 / 72.1 (F1), QNLI 90.5 /
           92.7, SST-2 93.5 / 94.9, CoLA 52.1 / 60.5 (Matthews), STS-B 85.8 / 86.5 (Spearman), MRPC 88.9 / 89.3 (F1),
           RTE 66.4 / 70.1, the mean 79.6 / 82.1 (https://arxiv.org/abs/1810.04805, table 1). Base on dev sets: MNLI-m
           84.4, QNLI 88.4, SST-2 92.7, MRPC 86.7 (accuracy: metric=accuracy; table 5). The paper takes the best of
           5e-5, 4e-5, 3e-5 and 2e-5 on the dev set; small models need more: 4 epochs, 3e-4 to 3e-5
           (google-research/bert's README)
"""

from bert_jax.training.optimizer import OptimizerConfig
from train.finetuning.recipe import FinetuneConfig


def get_config() -> FinetuneConfig:
    return FinetuneConfig(
        optimizer=OptimizerConfig(learning_rate=3e-5, warmup_steps=0, bias_correction=True),
        epochs=3,
        batch=32,
        max_length=128,
    )
