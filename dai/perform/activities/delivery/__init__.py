"""Activities that send data elsewhere or take it from there: addresses, files, mail, other services, sessions."""
