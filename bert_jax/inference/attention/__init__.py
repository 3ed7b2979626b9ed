"""The attention weights of every head of every layer: as arrays, a picture, or an HTML page."""
