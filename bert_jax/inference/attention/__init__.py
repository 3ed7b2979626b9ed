"""What every head of every layer looks at: arrays, a picture, a page to walk through."""
