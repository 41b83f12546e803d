"""What `scale` computes and says."""
