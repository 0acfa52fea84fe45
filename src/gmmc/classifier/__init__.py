"""The model: images → logits, scores, abstention."""
