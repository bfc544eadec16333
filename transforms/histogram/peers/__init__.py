"""Other mechanisms for the same histogram, behind one interface, to compare with."""
