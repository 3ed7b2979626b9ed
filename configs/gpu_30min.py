"""A BERT of 12 layers, 384 wide, that learns grammar: from 150 MB of text and half an hour of one large GPU.

Command:   python -m train.pretrain configs/gpu_30min.py text='wiki-en-0*.jsonl.zst' run=runs/gpu
Hardware:  one GPU of the class of an H100
Time:      9.5 to 27 minutes on an H100 by `python -m train.plan configs/gpu_30min.py --topology h100:1`; not run on
           a GPU
Expected:  not run; configs/two_hours.py has the measured figures of a hundredth of the tokens

As configs/night.py with a larger model, batches of 65,536 tokens and some 60 passes over the text, hence the dropout,
which costs a model that sees its text a few times (docs/recipes.md).
"""

from bert_jax.config import BertConfig
from bert_jax.data.pretraining.masking import MaskingConfig
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
        phases=(  # two sentences share a row of 64 positions, so batches of 1,024 rows
            Phase(length=64, batch=2_048, steps=26_000, mask=0.3),
            Phase(length=64, batch=2_048, steps=6_000, mask=0.15),
        ),
        masking=MaskingConfig(corruption=(1.0, 0.0, 0.0)),
        text_options=TextConfig(vocab_size=16_000, objective="none", rows="sentences"),
        packing="yes",
        packed=((64, 2.0),),  # about; a run counts its own
        eval_every=2_000,
        save_every=2_000,
    )
