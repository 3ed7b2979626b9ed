"""From a model and texts to answers: a few compiled shapes, plain Python results.

`pipeline` is the way in.
"""
