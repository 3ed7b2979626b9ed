"""The programs, run from a checkout: prepare text, pretrain."""
