"""Text in, text out: the tokenizer and `LLM` on top of the engine."""
