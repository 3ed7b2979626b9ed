"""A BERT of 12 layers, 384 wide, from 150 MB of text in half an hour of one large GPU.

Command:   python -m train.pretrain configs/gpu_30min.py text='wiki-en-0*.jsonl.zst' run=runs/gpu
Hardware:  one GPU of the class of an H100
Time:      9 to 24 minutes on an H100 by the estimate of `python -m train.plan` for as many tokens in rows of 64;
           not run on a GPU
Expected:  not run

As configs/hour.py with a larger model, rows of 128, dropout since the text is read many times, and batches of 65,536
tokens.
"""

from bert_jax.config import BertConfig
from bert_jax.model.start import StartConfig
from bert_jax.training.optimizer import OptimizerConfig
from train.pretraining.recipe import Phase, PretrainConfig, TextConfig


def get_config() -> PretrainConfig:
    return PretrainConfig(
        model=BertConfig(
            hidden_size=384,
            num_hidden_layers=12,
            num_attention_heads=6,
            intermediate_size=1536,
            max_position_embeddings=128,
            dtype="bfloat16",
        ),
        start=StartConfig(range="width", positions="fourier", heads=((0, -1, 1),)),
        optimizer=OptimizerConfig(name="muon", learning_rate=1e-3, warmup_share=0.05, b2=0.98, decay_from="warmup"),
        phases=(Phase(length=128, batch=512, steps=32_000),),
        text_options=TextConfig(vocab_size=8_000, objective="none", rows="blocks"),
        packing="no",
        eval_every=2_000,
        save_every=2_000,
    )
