"""Finished runs, without torch or MPI: groups, comparisons, pictures (plots/), the page (report/)."""
