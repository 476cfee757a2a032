"""Requests in token ids, the buckets of their shapes, and the engine that runs them."""
