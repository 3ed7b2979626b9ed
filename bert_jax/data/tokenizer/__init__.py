"""Text to ids and back, for every family and every form that a tokenizer is published in.

The only folder that imports the `tokenizers` library.
"""
