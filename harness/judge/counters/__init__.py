"""Hardware counters of solutions that passed: Nsight Compute around the judge's own launcher. No verdict reads them."""
