"""RoBERTa on GLUE with its paper's numbers: more epochs, a shorter warm-up and other Adam betas than BERT's.

Command:   python -m train.finetune configs/finetune_roberta.py init=FacebookAI/roberta-base task=rte data=glue/RTE
           RTE and STS-B: these numbers; CoLA and MRPC: optimizer.learning_rate=1e-5; SST-2, QNLI, QQP and MNLI:
           optimizer.learning_rate=1e-5 batch=32. SQuAD: configs/finetune_squad.py, 1.5e-5, batch=48 epochs=2
Hardware:  1 GPU or TPU chip for base
Time:      minutes for the small tasks of GLUE; not measured
Expected:  dev sets, base / large: MNLI 87.6 / 90.2, QNLI 92.8 / 94.7, QQP 91.9 / 92.2, RTE 78.7 / 86.6, SST-2 94.8 /
           96.4, MRPC 90.2 / 90.9 (accuracy: metric=accuracy), CoLA 63.6 / 68.0, STS-B 91.2 / 92.4; large on SQuAD 1.1
           88.9 / 94.6 EM / F1, on 2.0 86.5 / 89.4 (https://github.com/facebookresearch/fairseq, examples/roberta;
           https://arxiv.org/abs/1907.11692, which starts RTE, STS-B and MRPC from an MNLI model: init=RUN)
"""

from bert_jax.training.optimizer import OptimizerConfig
from train.finetuning.recipe import FinetuneConfig


def get_config() -> FinetuneConfig:
    return FinetuneConfig(
        optimizer=OptimizerConfig(
            learning_rate=2e-5, warmup_steps=0, bias_correction=True, b2=0.98, weight_decay=0.1, clip_norm=0.0
        ),
        epochs=10,
        batch=16,
        warmup=0.06,
        max_length=512,
    )
