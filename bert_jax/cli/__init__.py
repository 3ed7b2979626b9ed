"""The command line: one file a verb, with its arguments, its run and what it shows.

`bert_jax/__main__.py` puts them together.
"""
