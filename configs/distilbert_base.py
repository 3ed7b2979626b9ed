r"""DistilBERT-base (https://arxiv.org/abs/1910.01108): six layers of a BERT-base, distilled from it.

Command:   python -m bert_jax edit google-bert/bert-base-uncased STUDENT --student distilbert
           python -m train.prepare TEXT --vocab google-bert/bert-base-uncased --objective none --max-seq-length 512 \
               --output DATA
           python -m train.pretrain configs/distilbert_base.py init=STUDENT data=DATA run=runs/distilbert
Hardware:  the paper's: 8 V100 of 16 GB
Time:      the paper's: about 90 hours. Not run here: see --dry-run for what a step costs on your machine
Expected:  the authors' development sets: GLUE 77.0 on average (CoLA 51.3, MNLI 82.1, MRPC 87.5, QNLI 89.2, QQP 88.5,
           RTE 59.9, SST-2 91.3, STS-B 86.9, WNLI 56.3); SQuAD 1.1 86.9 F1 after a second distillation

The loss is 5 x KL at temperature 2 + 2 x masked LM + 1 x cosine; batches of about 4,000, dropout 0.1; Adam as in the
authors' code: peak 5e-4 after 5 % of the steps, linear decay, b2 0.98, no weight decay, gradients clipped at 5. They
train for three epochs, which for 8 million rows is 6,000 steps; set `phases` for your text. Their code masks rare words
more often; this recipe does not. Logits of student and teacher at every position take much memory: lower
`tokens_per_device`, or use `distillation.restrict_ce_to_mask=true` for fewer logits.
"""

from bert_jax.config import BertConfig
from bert_jax.training.optimizer import OptimizerConfig
from train.pretraining.recipe import Phase, PretrainConfig, TextConfig

STEPS = 6_000


def get_config() -> PretrainConfig:
    return PretrainConfig(
        model=BertConfig.preset("distilbert-base-uncased", dtype="bfloat16"),
        optimizer=OptimizerConfig(
            learning_rate=5e-4,
            warmup_steps=round(0.05 * STEPS),
            decay_from="warmup",
            bias_correction=True,
            b2=0.98,
            weight_decay=0.0,
            clip_norm=5.0,
        ),
        phases=(Phase(length=512, batch=4_096, steps=STEPS),),
        teacher="google-bert/bert-base-uncased",
        tokens_per_device=4_096,
        text_options=TextConfig(vocab="google-bert/bert-base-uncased", objective="none"),
        log_every=10,
        eval_every=500,
        eval_batches=4,
        save_every=100,
    )
