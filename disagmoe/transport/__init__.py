"""Moving tensors between workers over one-way channels."""
