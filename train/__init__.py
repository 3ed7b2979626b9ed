"""The programs, run from a checkout: prepare text, pretrain, fine-tune, and a demo."""
