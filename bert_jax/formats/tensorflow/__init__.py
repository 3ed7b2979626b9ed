"""Read and write Google's checkpoints without TensorFlow.

BERT and ALBERT of TF1 are read and written, the encoder of TF2's Model Garden is read.
"""
