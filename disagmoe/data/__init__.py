"""Token files, their preparation, and the deterministic order in which a run reads them."""
