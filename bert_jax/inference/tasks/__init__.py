"""One file per pipeline, and the code that they share.

To add a pipeline, subclass `TaskModel` and add an entry in `bert_jax/inference/pipeline.py`.
"""
