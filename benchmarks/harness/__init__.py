"""The paper's experiments: data sets, methods, cells, and what is made of their results."""
