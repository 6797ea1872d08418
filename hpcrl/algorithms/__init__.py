"""Learning algorithms: pure functions and small classes that know no MPI."""
