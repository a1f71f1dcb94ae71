"""Activities that change the form of what passes through: encoding, compression, blocks, style sheets."""
