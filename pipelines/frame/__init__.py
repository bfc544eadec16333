"""What all jobs share: inputs, the ledger's charge, scratch space, and the ten steps of a release run."""
