"""What the cost model is told of this machine and of an experiment."""
