"""BERT-base (https://arxiv.org/abs/1810.04805, section 3.1 and A.2): two phases, Google's AdamW.

Command:   python -m train.prepare TEXT --output DATA --vocab-size 30522 --max-seq-length 128,512
           python -m train.pretrain configs/bert_base.py data=DATA run=runs/base
Hardware:  the paper's: 4 Cloud TPUs (16 chips); uses every device, with batch rows split over them
Time:      the paper's: 4 days. Not run here: see --dry-run for what a step costs on your machine. Planned for one
           v5e chip: 130 to 166 ms for a step of 256 x 128, 55 to 70 % of its peak (benchmarks/results/accelerators.md)
Expected:  the paper's, test sets: GLUE average 79.6; MNLI-m 84.6, QQP 71.2 F1, QNLI 90.5, SST-2 93.5, CoLA 52.1,
           STS-B 85.8, MRPC 88.9 F1, RTE 66.4; SQuAD 1.1 dev 80.8 EM / 88.5 F1; CoNLL-2003 test 92.4 F1

Batch 256, a million steps: the first 900,000 on sequences of 128 tokens, the rest on 512. Learning rate 1e-4
after 10,000 steps of warm-up, linear decay, weight decay 0.01, dropout 0.1, clipping at 1.0.
"""

from bert_jax.config import BertConfig
from bert_jax.training.optimizer import OptimizerConfig
from train.pretraining.recipe import Phase, PretrainConfig, TextConfig


def get_config() -> PretrainConfig:
    return PretrainConfig(
        model=BertConfig.preset("base-uncased", dtype="bfloat16"),
        optimizer=OptimizerConfig(learning_rate=1e-4, warmup_steps=10_000),
        phases=(Phase(length=128, batch=256, steps=900_000), Phase(length=512, batch=256, steps=100_000)),
        tokens_per_device=8_192,
        text_options=TextConfig(vocab_size=30_522),
        log_every=100,
        eval_every=10_000,
        save_every=5_000,
    )
