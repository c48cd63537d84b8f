"""JAX functions as pyc programs, by way of their jaxprs."""
