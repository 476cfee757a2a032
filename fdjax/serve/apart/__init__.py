"""An engine in a process of its own, and what crosses between it and those it serves.

The front has HTTP, texts and asyncio; the engine's process has the device, the model,
grammars and beam searches. Between them is one pair of sockets, which nobody else can
reach. The front's side is `client`, the engine's is `host`.
"""
