"""What was measured of kernels: one JSON file a device, with a part for an operation.

`files` finds, reads and writes them. What the part of an operation means, and what
serves where no file has it, is that operation's: `matmul.table` and
`layer_program.table`.
"""
