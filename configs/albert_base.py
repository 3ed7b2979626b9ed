r"""ALBERT-base (https://arxiv.org/abs/1909.11942), v1: shared layers, sentence order, masks of n-grams; LAMB.

Command:   python -m train.prepare TEXT --vocab albert/albert-base-v1 --objective sop --max-seq-length 512 \
               --output DATA
           python -m train.pretrain configs/albert_base.py data=DATA run=runs/albert
Hardware:  the paper's: 64 to 512 chips of Cloud TPU v3, depending on the size of the model
Time:      not known for base. Not run here: see --dry-run for what a step costs on your machine
Expected:  the authors' development sets (google-research/albert README, v1 base): MNLI 81.6, SST-2 90.3, RACE 64.0,
           SQuAD 1.1 89.3 F1 / 82.3 EM, SQuAD 2.0 80.0 F1 / 77.1 EM, 80.1 on average

125,000 steps of 4,096 sequences of 512 tokens, peak learning rate 1.76e-3 after 3,125 steps (the warm-up of Google's
script), linear decay, dropout 0.1. Up to three consecutive whole words are masked together. The second release trains
without dropout, for 10 million steps and on more text: preset albert-base-v2.
"""

from bert_jax.config import BertConfig
from bert_jax.data.pretraining.masking import MaskingConfig
from bert_jax.training.optimizer import OptimizerConfig
from train.pretraining.recipe import Phase, PretrainConfig, TextConfig


def get_config() -> PretrainConfig:
    return PretrainConfig(
        model=BertConfig.preset("albert-base-v1", dtype="bfloat16"),
        optimizer=OptimizerConfig(name="lamb", learning_rate=1.76e-3, warmup_steps=3_125),
        phases=(Phase(length=512, batch=4_096, steps=125_000),),
        masking=MaskingConfig(whole_word=True, ngram=3),
        tokens_per_device=8_192,
        text_options=TextConfig(vocab="albert/albert-base-v1", objective="sop"),
        log_every=100,
        eval_every=2_500,
        eval_batches=4,
        save_every=1_000,
    )
