"""Prefill, decode and sampling as pure functions, and `generate`, one jitted call."""
