"""From the one set to the signed record: sum, noise, commitment, opening, record."""
