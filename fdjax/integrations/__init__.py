"""fdjax inside other JAX stacks; each module imports the stack that it is for."""
