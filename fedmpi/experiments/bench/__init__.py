"""The speed figures behind `fedmpi bench`: each a ratio of two sides measured in turns in one run."""
