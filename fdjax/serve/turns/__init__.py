"""An assistant's turn: what a model's text says of content and of calls of tools."""
