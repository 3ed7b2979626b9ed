"""The command line: a file a verb, or two that share all but little, with its arguments, its run and what it shows.

`bert_jax/__main__.py` puts them together.
"""
