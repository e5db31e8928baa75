"""What a run is, as frozen values read from TOML."""
