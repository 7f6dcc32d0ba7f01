"""Result files: their layout (columns.py), writing (writer.py, rank 0 only), reading (reader.py), and
what runs have cost by other clocks than rounds (clocks.py).

Reading needs neither torch nor MPI.
"""
