"""The state of a run as files: written in parts, committed by a manifest, read in any layout."""
