"""Cost-model inputs measured or traced from experiments, and predictions for them."""
