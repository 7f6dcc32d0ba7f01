"""Whether all ranks make progress, and what happens when one does not.

pulse.py: what each rank is doing, in memory that the others read without its help; board.py: that memory,
on a node and across nodes; judge.py: who stalls; watchdog.py: the thread that warns and ends the job;
beginning.py: the time before, until the config is known; ending.py: how a job is ended;
launcher_gone.py: what ranks do when mpirun or srun has died.
"""
