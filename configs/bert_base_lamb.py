"""BERT with very large batches: NVIDIA's LAMB recipe, phase 1 of 2 (sequences of 128 tokens).

Command:   python -m train.prepare TEXT --output DATA --vocab-size 30522 --max-seq-length 128,512
           python -m train.pretrain configs/bert_base_lamb.py data=DATA run=runs/lamb-1
           python -m train.pretrain configs/bert_base_lamb_512.py data=DATA init=runs/lamb-1 run=runs/lamb-2
Hardware:  8 GPUs in the reference (DeepLearningExamples, PyTorch BERT); on any number of devices, each computes
           8,192 tokens at a time (tokens_per_device), in as many parts as that takes
Time:      not run here: see --dry-run for what a step costs on your machine
Expected:  the reference trains BERT-large with it (SQuAD 1.1 F1 of 91.5 at a batch of 32,768 in the LAMB paper,
           https://arxiv.org/abs/1904.00962, tables 1 and 4); for base, the scores in configs/bert_base.py are the goal

7,038 steps of 65,536 sequences, peak learning rate 6e-3 after a warm-up over 28.43 % of them, then (1 - k / N) ** 0.5.
The second phase has its own schedule, so it is a separate run.
"""

from bert_jax.config import BertConfig
from bert_jax.training.optimizer import OptimizerConfig
from train.pretraining.recipe import Phase, PretrainConfig, TextConfig

STEPS = 7_038


def get_config() -> PretrainConfig:
    return PretrainConfig(
        model=BertConfig.preset("base-uncased", dtype="bfloat16"),
        optimizer=OptimizerConfig(
            name="lamb",
            learning_rate=6e-3,
            warmup_steps=round(0.2843 * STEPS),
            schedule="polynomial",
            power=0.5,
            first_count=1,
            bias_correction=True,
        ),
        phases=(Phase(length=128, batch=65_536, steps=STEPS),),
        tokens_per_device=8_192,
        text_options=TextConfig(vocab_size=30_522, dupe_factor=5),
        log_every=10,
        eval_every=500,
        eval_batches=1,
        save_every=100,
    )
