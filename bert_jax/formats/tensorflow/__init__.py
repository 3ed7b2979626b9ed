"""Google's checkpoints, read and written without TensorFlow.

TF1's BERT and ALBERT, TF2's Model Garden (reading only).
"""
