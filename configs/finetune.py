"""Fine-tuning with the paper's numbers: classification, regression, tags, multiple choice.

Command:   python -m train.finetune configs/finetune.py init=google-bert/bert-base-uncased task=mrpc data=glue/MRPC
Hardware:  1 GPU or TPU chip for base; small models on a CPU
Time:      minutes for the small tasks of GLUE
Expected:  BERT-base on GLUE's dev sets: MNLI-m 84.4, QNLI 88.4, MRPC 86.7, SST-2 92.7 (https://arxiv.org/abs/1810.04805,
           table 5); test: RTE 66.4, CoLA 52.1, STS-B 85.8 (table 1). The paper takes the best of 5e-5, 4e-5, 3e-5 and
           2e-5 on the dev set; small models want more: 4 epochs, 3e-4 to 3e-5 (google-research/bert's README)
"""

from bert_jax.training.optimizer import OptimizerConfig
from train.finetune_recipe import FinetuneConfig


def get_config() -> FinetuneConfig:
    return FinetuneConfig(
        optimizer=OptimizerConfig(learning_rate=3e-5, warmup_steps=0, bias_correction=True),
        epochs=3,
        batch=32,
        max_length=128,
    )
