"""The OpenAI API over an `AsyncLLM`; needs the extra `serve`."""
