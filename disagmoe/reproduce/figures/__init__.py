"""One file per experiment of the paper: what it simulates, and its rows."""
