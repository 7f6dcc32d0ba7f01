"""`fedmpi report`: results of runs as one HTML page that needs no network."""
