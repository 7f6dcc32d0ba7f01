"""Result files: their layout (columns.py), writing (writer.py, rank 0 only), reading (reader.py).

Reading needs neither torch nor MPI.
"""
