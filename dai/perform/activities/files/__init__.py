"""Activities over a directory of files. ``locate`` finds places in them."""
