"""BERT with very large batches: NVIDIA's LAMB recipe, phase 2 of 2 (sequences of 512 tokens).

Command:   python -m train.pretrain configs/bert_base_lamb_512.py data=DATA init=runs/lamb-1 run=runs/lamb-2
Hardware:  8 GPUs in the reference (DeepLearningExamples, PyTorch BERT); on any number of devices, each computes
           8,192 tokens at a time (tokens_per_device), in as many parts as that takes
Time:      not run here: see --dry-run for what a step costs on your machine
Expected:  as configs/bert_base_lamb.py, whose run it continues

1,563 steps of 32,768 sequences, peak learning rate 4e-3 after a warm-up over 12.8 % of them, then (1 - k / N) ** 0.5.
"""

from bert_jax.config import BertConfig
from bert_jax.training.optimizer import OptimizerConfig
from train.pretraining.recipe import Phase, PretrainConfig, TextConfig

STEPS = 1_563


def get_config() -> PretrainConfig:
    return PretrainConfig(
        model=BertConfig.preset("base-uncased", dtype="bfloat16"),
        optimizer=OptimizerConfig(
            name="lamb",
            learning_rate=4e-3,
            warmup_steps=round(0.128 * STEPS),
            schedule="polynomial",
            power=0.5,
            first_count=1,
            bias_correction=True,
        ),
        phases=(Phase(length=512, batch=32_768, steps=STEPS),),
        tokens_per_device=8_192,
        text_options=TextConfig(vocab_size=30_522, dupe_factor=5),
        log_every=10,
        eval_every=200,
        eval_batches=1,
        save_every=50,
    )
