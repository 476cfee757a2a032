"""fdjax: LLM inference on GPUs from JAX."""
