"""How good a method is: metrics, yardsticks, comparisons. This room reads the truth; no release may use any of it."""
