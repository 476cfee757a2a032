"""The work of prefill attention, listed on the device; `tiles` is the definition."""
