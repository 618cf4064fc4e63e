"""How good credit and gradients are, from arrays alone."""
