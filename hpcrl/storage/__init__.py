"""Files of a run: the run log and the checkpoints. Only these modules import h5py."""
