"""The operations: one folder each, with the definition and every implementation."""
