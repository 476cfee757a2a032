"""What was measured of kernels: one JSON file a device, with a part for an operation.

`files` finds, reads and writes them, and `parts` finds what one has for an operation.
What the part of an operation means, and what serves where no file has it, is that
operation's `table`; `chip` is what all have in common.
"""
