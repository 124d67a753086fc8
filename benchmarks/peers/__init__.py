"""FedAvg rounds of this project beside PyTorch and federated-learning frameworks, each in an environment of its own."""
