"""The DisagMoE paper's comparison (arXiv:2605.11005) on our costs and simulator, claim by claim."""
