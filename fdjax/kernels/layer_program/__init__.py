"""The launches of a whole step as one FFI call, for any mix of rows."""
