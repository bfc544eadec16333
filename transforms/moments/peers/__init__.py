"""Other mechanisms for a mean under local differential privacy, to compare with."""
