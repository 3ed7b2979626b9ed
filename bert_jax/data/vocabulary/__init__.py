"""Words counted and a WordPiece vocabulary learnt from them.

The same text gives the same bytes every time.
"""
