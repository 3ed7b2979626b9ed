"""BERT-large as published (https://arxiv.org/abs/1810.04805, section 3.1 and A.2): two phases, Google's AdamW.

Command:   python -m train.prepare TEXT --output DATA --vocab-size 30522 --max-seq-length 128,512
           python -m train.pretrain configs/bert_large.py data=DATA run=runs/large
Hardware:  the paper's: 16 Cloud TPUs (64 chips); if a step does not fit, use tokens_per_device=1024 or
           mesh.fsdp=4
Time:      the paper's: 4 days. Not run here: see --dry-run for what a step costs on your machine. Planned for one
           v5e chip: 400 to 495 ms for a step of 256 x 128, 1.8 to 2.3 s at 512, 57 to 78 % of its peak
           (benchmarks/results/accelerators.md)
Expected:  the paper's, test sets: GLUE average 82.1; MNLI-m 86.7, QQP 72.1 F1, QNLI 92.7, SST-2 94.9, CoLA 60.5,
           STS-B 86.5, MRPC 89.3 F1, RTE 70.1; SQuAD 1.1 dev 84.1 EM / 90.9 F1; CoNLL-2003 test 92.8 F1

The recipe is that of configs/bert_base.py.
"""

from bert_jax.config import BertConfig
from bert_jax.training.optimizer import OptimizerConfig
from train.pretraining.recipe import Phase, PretrainConfig, TextConfig


def get_config() -> PretrainConfig:
    return PretrainConfig(
        model=BertConfig.preset("large-uncased", dtype="bfloat16"),
        optimizer=OptimizerConfig(learning_rate=1e-4, warmup_steps=10_000),
        phases=(Phase(length=128, batch=256, steps=900_000), Phase(length=512, batch=256, steps=100_000)),
        tokens_per_device=4_096,
        text_options=TextConfig(vocab_size=30_522),
        log_every=100,
        eval_every=10_000,
        save_every=2_000,
    )
