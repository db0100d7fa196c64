"""The contract between replicas and gateways. Never imports torch.

hashing   token ids -> chained block hashes, the same on both sides
records   what a replica publishes to Redis: deltas, snapshots, heartbeats
text      chat template and tokenizer of a model folder
openai    the public wire format: requests, parsed strictly, and error bodies
headers   HTTP header names
"""
