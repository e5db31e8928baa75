"""Whether this machine, and the cluster it belongs to, can run what it is asked."""
