"""What a run tells Prometheus: a catalogue, values by it, and an endpoint that serves them."""
