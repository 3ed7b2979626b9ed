"""BERT-base on a TPU pod by the recipe of configs/hour.py: wired heads, Muon, rows without holes.

Command:   python -m train.prepare TEXT --output DATA --vocab-size 30522 --uncased --objective none --rows blocks \\
               --max-seq-length 128,512 --dupe-factor 1
           python -m train.pretrain configs/pod.py data=DATA run=runs/pod mesh.zero=8
           BERT-large: model.hidden_size=1024 model.num_hidden_layers=24 model.num_attention_heads=16
               model.intermediate_size=4096 tokens_per_device=4096 optimizer.learning_rate=4e-4
Hardware:  planned for sixteen v5e chips; uses every device, in as many parts as tokens_per_device says
Time:      planned with `python -m train.plan` for v5e:4x4 and mesh.zero=8 (benchmarks/results/accelerators.md): a
           step of 4,096 x 128 takes 139 to 182 ms, 50 to 65 % of the peak, one of 1,024 x 512 takes 164 to 219 ms.
           Together 1.6 to 2.1 hours, 30 to 40 dollars at 1.20 for a chip and an hour. Large: 4.5 to 5.6 hours, 87 to
           108 dollars, from AdamW's steps on one chip, without exchanges and Muon
Expected:  not run. The aim is the scores of configs/bert_base.py from half of the paper's positions: 21 of 43 billion

Measured with two layers of 128 (docs/recipes.md): wired heads and Muon leave the plateau early, and reach the loss of
the first run of the published recipe with half of its tokens, though not that of a later one. Not measured: whether
that holds at this size, and Muon with this batch.
Rate and b2 are those of RoBERTa (6e-4, for large 4e-4; https://arxiv.org/abs/1907.11692, table 9), whose batches have
eight times as many tokens. Muon's updates have the size of AdamW's, so its rates apply. For batches that are larger
still there is LAMB: configs/bert_base_lamb.py.
"""

from bert_jax.config import BertConfig
from bert_jax.model.start import StartConfig
from bert_jax.training.optimizer import OptimizerConfig
from train.pretraining.recipe import Phase, PretrainConfig, TextConfig


def get_config() -> PretrainConfig:
    return PretrainConfig(
        model=BertConfig.preset("base-uncased", dtype="bfloat16"),
        start=StartConfig(range="width", positions="fourier", heads=((0, -1, 1),)),
        optimizer=OptimizerConfig(
            name="muon", learning_rate=6e-4, warmup_share=0.05, b2=0.98, decay_from="warmup", clock="tokens"
        ),
        phases=(Phase(length=128, batch=4_096, steps=36_000), Phase(length=512, batch=1_024, steps=4_000)),
        tokens_per_device=8_192,
        text_options=TextConfig(vocab_size=30_522, objective="none", rows="blocks"),
        packing="no",
        log_every=100,
        eval_every=1_000,
        save_every=1_000,
    )
