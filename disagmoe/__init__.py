"""DisagMoE: mixture-of-experts training with attention and experts on disjoint nodes."""

__version__ = "0.1.0"
