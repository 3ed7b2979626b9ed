"""What a run is scored on besides held-out text, while it trains: BLiMP, a probe, a fine-tuning."""
