"""Continue pretraining a published BERT, or one of yours, on your own text.

Command:   python -m train.prepare TEXT --vocab google-bert/bert-base-uncased --output DATA --max-seq-length 128,512
           python -m train.pretrain configs/continue.py init=google-bert/bert-base-uncased data=DATA run=runs/mine
Hardware:  the source's size decides; see --dry-run for what a step costs on your machine
Time:      not fixed: 10,000 steps of 64 x 128 tokens, then 1,000 of 16 x 512
Expected:  a held-out masked-LM loss that starts at the source's and falls from there; how far depends on your text

The architecture is the source's. Learning rate 2e-5: google-research/bert's advice for additional steps from an
existing checkpoint, instead of 1e-4 from scratch.
"""

from bert_jax.config import BertConfig
from bert_jax.training.optimizer import OptimizerConfig
from train.pretraining.recipe import Phase, PretrainConfig


def get_config() -> PretrainConfig:
    return PretrainConfig(
        model=BertConfig(dtype="bfloat16"),
        optimizer=OptimizerConfig(learning_rate=2e-5, warmup_steps=1_000),
        phases=(Phase(length=128, batch=64, steps=10_000), Phase(length=512, batch=16, steps=1_000)),
    )
