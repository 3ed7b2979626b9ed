r"""RoBERTa-base (https://arxiv.org/abs/1907.11692): masked LM alone, on much more text, in large batches.

Command:   python -m train.prepare TEXT --vocab FacebookAI/roberta-base --objective none --rows full-sentences \
               --max-seq-length 512 --output DATA
           python -m train.pretrain configs/roberta_base.py data=DATA run=runs/roberta
Hardware:  the paper's: machines of 8 V100 (32 GB), mixed precision; it does not say how many for base (the large
           model's first 100,000 steps took 1,024 V100 about a day). tokens_per_device splits the batch to fit yours
Time:      not known for base. Not run here: see --dry-run for what a step costs on your machine
Expected:  the authors' development sets (fairseq's README): MNLI 87.6, QNLI 92.8, QQP 91.9, RTE 78.7, SST-2 94.8,
           MRPC 90.2, CoLA 63.6, STS-B 91.2; after 160 GB of text

500,000 steps of 8,192 sequences of 512 tokens, peak learning rate 6e-4 after 24,000 steps, then linear decay; Adam's
b2 is 0.98, without clipping. A row holds whole sentences and runs on over documents, with `</s>` between two (the
paper's FULL-SENTENCES). Masks are drawn as in fairseq: their share is 15 % only on average, and `<s>` and `</s>` may be
masked.
"""

from bert_jax.config import BertConfig
from bert_jax.data.pretraining.masking import MaskingConfig
from bert_jax.training.optimizer import OptimizerConfig
from train.pretraining.recipe import Phase, PretrainConfig, TextConfig


def get_config() -> PretrainConfig:
    return PretrainConfig(
        model=BertConfig.preset("roberta-base", dtype="bfloat16"),
        optimizer=OptimizerConfig(
            learning_rate=6e-4,
            warmup_steps=24_000,
            decay_from="warmup",
            bias_correction=True,
            b2=0.98,
            clip_norm=0.0,
        ),
        phases=(Phase(length=512, batch=8_192, steps=500_000),),
        masking=MaskingConfig(strategy="roberta"),
        tokens_per_device=8_192,
        text_options=TextConfig(vocab="FacebookAI/roberta-base", objective="none", rows="full-sentences"),
        log_every=100,
        eval_every=5_000,
        eval_batches=2,
        save_every=1_000,
    )
